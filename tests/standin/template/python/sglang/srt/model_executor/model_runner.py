from sglang.srt import scripted


class ModelRunner:
    """The target model. A verify forward costs `verify_ms`, a plain decode step `token_ms`."""

    def __init__(self, factor):
        self.device = "cpu"
        self.factor = factor

    def forward(self, forward_batch, *args, **kwargs):
        scripted.PACE.spend(forward_batch.target_ms * self.factor)
        return forward_batch
