"""One speculative cycle: draft, verify, catch the draft model up. Named and nested as in SGLang."""

from sglang.srt import scripted


class EagleDraftWorker:
    def __init__(self, factor):
        self.factor = factor

    def draft(self, batch, **kwargs):
        scripted.PACE.spend(batch.draft_ms * self.factor)

    def _draft_extend_for_decode(self, batch, batch_result):
        scripted.PACE.spend(batch.extend_ms * self.factor)

    def _draft_extend_for_prefill(self, batch, *args, **kwargs):
        pass


class EAGLEWorkerV2:
    def __init__(self, args, target_worker, factor):
        self.device = "cpu"
        self.steps = args.speculative_num_steps
        self._target_worker = target_worker
        self._draft_worker = EagleDraftWorker(factor)

    @property
    def target_worker(self):
        return self._target_worker

    @property
    def draft_worker(self):
        return self._draft_worker

    def forward_batch_generation(self, batch, *args, **kwargs):
        if batch.forward_mode.is_extend():
            result = self.target_worker.forward_batch_generation(batch)
            self.draft_worker._draft_extend_for_prefill(batch)
            return result
        self.draft_worker.draft(batch)
        result = self.verify(batch)
        self.draft_worker._draft_extend_for_decode(batch, result)
        return result

    def verify(self, batch, pp_proxy_tensors=None, grammar_barrier=None):
        self.target_worker.forward_batch_generation(batch)
        return {id(request): request.accept(self.steps) for request in batch.reqs}
