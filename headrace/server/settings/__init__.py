"""What a user may ask of the HTTP server, group by group."""
