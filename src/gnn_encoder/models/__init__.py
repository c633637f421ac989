"""The networks and their saved files; `inference` runs the networks. Imports `storage`, `artifacts`, `settings`."""
