"""A subclass of vLLM's asynchronous scheduler for TTT models."""

from dataclasses import replace
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs

from bench.models.hugging_face import read_config

HEADS = 128  # fewest heads of the prompts that share a step, if there are enough prompts; about one head per SM


class TTTScheduler(AsyncScheduler):
    """vLLM's asynchronous scheduler, with two changes for TTT models.

    Steps in which all requests generate take a fast path where possible, because states need no new cache blocks.
    Other steps divide their tokens among several prompts, to occupy all SMs; vLLM fills a step prompt by prompt. This
    needs `enable_chunked_prefill` and no `long_prefill_token_threshold`. A step's outputs may be reordered.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        special = self.connector or self.aux_output_connector or self.perf_metrics or self.return_sampling_mask
        one_block = self.block_size >= self.max_model_len and not self.cache_config.enable_prefix_caching
        fits = self.max_num_running_reqs <= self.max_num_scheduled_tokens and self.num_sampled_tokens_per_step == 1
        self._fast_allowed = one_block and fits and self.local_prefill_interval <= 1 and not special  # by settings
        config, limits = read_config(self.vllm_config.model_config.model), self.scheduler_config
        self._mini_batch, self._prompts_at_once = config.mini_batch, 1 << ((HEADS - 1) // config.heads).bit_length()
        self._divides = limits.enable_chunked_prefill and not limits.long_prefill_token_threshold

    def schedule(self, throttle_prefills: bool = False) -> Any:
        starts = (self.waiting or self.kv_holding_waiting) and len(self.running) < self.max_num_active_reqs
        fast = self._fast_allowed and not (starts or throttle_prefills or self._pause_state)
        if not fast or not (requests := self._generating()):
            if self._divides:
                self.scheduler_config.long_prefill_token_threshold = self._tokens_per_prompt()
            return super().schedule(throttle_prefills)
        held = {name: getattr(self, name) for name in ("running", "max_num_active_reqs")}
        try:
            self.__dict__.update(running=[], max_num_active_reqs=0)
            step = super().schedule()  # an empty step, which reports finished requests
        finally:
            self.__dict__.update(held)
        ids, cached = [request.request_id for request in requests], step.scheduled_cached_reqs
        step.num_scheduled_tokens, step.total_num_scheduled_tokens = dict.fromkeys(ids, 1), len(ids)
        cached.req_ids, cached.new_block_ids = ids, [None] * len(ids)
        cached.num_computed_tokens = [request.num_computed_tokens for request in requests]
        cached.num_output_tokens = [len(each._output_token_ids) + each.num_output_placeholders for each in requests]
        for request in requests:
            request.num_computed_tokens += 1
            request.num_in_flight_tokens += 1
            request.num_output_placeholders += 1
        return step

    def _tokens_per_prompt(self) -> int:
        room = min(self.max_num_active_reqs - len(self.running), self.kv_cache_manager.block_pool.get_num_free_blocks())
        prompts = min(len(self.waiting), room) + sum(request.is_prefill_chunk for request in self.running)
        tokens = self.max_num_scheduled_tokens // max(1, min(prompts, self._prompts_at_once))
        return max(1, tokens // self._mini_batch) * self._mini_batch

    def _generating(self) -> list[Any]:
        """Return the requests that generate in this step; [] if any needs vLLM's own `schedule`."""
        found = []
        for request in self.running:
            ahead, computed = request.num_output_placeholders, request.num_computed_tokens
            if ahead and computed + 2 - ahead >= request.num_prompt_tokens + request.max_tokens:
                continue  # its last token is in flight
            generates = len(request._all_token_ids) + ahead - computed == 1 and not request.is_prefill_chunk
            if not generates or computed + 2 > self.max_model_len or request.structured_output_request:
                return []
            found.append(request)
        return found

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> dict[int, Any]:
        ran, rest, outputs = model_runner_output, dict[str, int](), dict[int, list[Any]]()
        prompts = ran.prompt_logprobs_dict or ran.prompt_token_id_logprobs_dict
        if not self._fast_allowed or not ran.sampled_token_ids or ran.logprobs or prompts or ran.num_nans_in_logits:
            return super().update_from_output(scheduler_output, ran)
        stats_pending = self.log_stats  # the first output's client gets the statistics, so vLLM's method must see it
        index, sampled = ran.req_id_to_index, ran.sampled_token_ids
        for request_id, count in scheduler_output.num_scheduled_tokens.items():
            request = self.requests.get(request_id)
            if request is None or not self._continues(request, tokens := sampled[index[request_id]]):
                rest[request_id] = count
                continue
            if stats_pending:
                stats_pending, rest[request_id] = False, count
                continue
            request.num_in_flight_tokens -= count
            request.num_output_placeholders -= 1
            request.append_output_token_ids(tokens)
            made = EngineCoreOutput(request_id, tokens, trace_headers=request.trace_headers)
            outputs.setdefault(request.client_index, []).append(made)
        found = super().update_from_output(replace(scheduler_output, num_scheduled_tokens=rest), ran)
        for client, some in outputs.items():
            found.setdefault(client, EngineCoreOutputs()).outputs.extend(some)
        return found

    def _continues(self, request: Any, tokens: list[int]) -> bool:
        """Return whether a generating request got exactly one token and continues after it."""
        if len(tokens) != 1 or request.prefill_stats or request.num_stale_output_tokens or request.events:
            return False  # a prompt's token, or a token from before a preemption
        params = request.sampling_params
        full = len(request._all_token_ids) + 1 >= self.max_model_len
        ends = full or len(request._output_token_ids) + 1 >= request.max_tokens
        stops = tokens[0] == params.eos_token_id or tokens[0] in (params.stop_token_ids or ())
        other = params.repetition_detection or request.structured_output_request or request.stop_reason
        return not (ends or stops or other or request.num_nans_in_logits)
