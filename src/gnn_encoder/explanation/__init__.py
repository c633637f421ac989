"""Why a passage was found: the training queries in its vector. Imports `retrieval`, those below; `report` shows it."""
