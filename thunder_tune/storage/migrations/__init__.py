"""Steps from each schema to the next; `thunder_tune.storage.schema` runs them."""
