"""perfgate on GitHub: who asks for what, may they, and what the pull request is told.

In: one event, as GitHub's payload. Out: check runs, one comment, the job's summary and outputs. Always the same way:
`gather` reads, `decide` and `outcome` are pure, `say` writes.

`respond` (hosted, no PR code) → `box` (the runner, no token) → `publish` (hosted, trusts nothing it is handed).
Everything that strangers wrote is parsed by a strict grammar or validated by a schema before anything else sees it.

A head SHA goes: PullEvent → Pull → Measure → Request → (the box's plan, its facts) → Result → Entry → CheckWord.
"""
