"""Time and judge programs, and say what measurements mean.

`steps` is one call as a user would make it, `timing` how long it takes in one process,
`statistics` what several processes allow to claim, `accuracy` whether the result is right, under
`policies`.
"""
