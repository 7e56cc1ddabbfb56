"""The web application: it shows what the database holds, and changes nothing."""
