from sglang.srt.model_executor.model_runner import ModelRunner


class TpModelWorker:
    def __init__(self, factor):
        self.device = "cpu"
        self.model_runner = ModelRunner(factor)

    def forward_batch_generation(self, forward_batch, *args, **kwargs):
        self.model_runner.forward(forward_batch)
        return {id(request): 1 for request in forward_batch.reqs}
