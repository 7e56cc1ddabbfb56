"""The web application: it shows what the database holds, and can end a study."""
