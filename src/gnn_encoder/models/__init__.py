"""The networks, each with its saved files. Imports `storage`, `artifacts`, `settings`; `inference` runs them."""
