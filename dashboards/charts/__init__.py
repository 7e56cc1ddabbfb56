"""Charts as SVG, drawn on the server: no script, no style attribute, colours by class."""
