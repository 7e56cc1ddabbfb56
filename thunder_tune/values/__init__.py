"""The values that travel through thunder-tune: frozen, without torch, all of them JSON.

They are plain dataclasses; `thunder_tune.values.codec` turns each into JSON and back, checked.
The way of the data: `source` -> `program` -> `space` -> `trial` (candidate and result) ->
`comparison` -> `recipe`; `fingerprint` says what a result depends on, `job` is what a worker is
asked.
"""
