"""The web application's place: it will show what the database holds; nothing is here yet."""
