"""The seeded faults. Each names the contract that must catch it; a survivor is a hole in that contract."""

from collections.abc import Callable

from ft.contracts.checks import drafts, rows, states, target, texts
from ft.contracts.law_mutants import law_mutants
from ft.contracts.matrix import folder_of, variants
from ft.contracts.mutate import Mutant
from ft.contracts.rig import Setting

RUNNER = "ft.fast.spec.runner"
MTP = "ft.fast.spec.mtp"
DRAFTS = "ft.fast.families.qwen3_5.drafts"
LAYERS = "ft.fast.families.qwen3_5.layers"
TARGET = "ft.fast.families.qwen3_5.target"
OPS = "ft.fast.backends.torch_ops"
STATE = "ft.fast.pools.linear_state"
PAGED = "ft.fast.pools.paged"
TABLE = "ft.fast.table"
VERIFY = "ft.fast.verify"
CUT = "ft.fast.cut"
ENGINE = "ft.fast.engine"
SCHEDULER = "ft.fast.scheduler"


def on(
    check: Callable[[Setting, int], None], proposer: str = "mtp", k: int = 3, tiny: str = "dense"
) -> Callable[[], None]:
    """The contract on one cell."""

    def run() -> None:
        variant = next(item for item in variants() if item.name == tiny)
        check(Setting(folder_of(variant), variant.family, proposer, k), variant.vocabulary)

    return run


ACCEPTS = on(states.check_every_accept_count)
NEIGHBOURS = on(states.check_neighbours)
POISON = on(states.check_poisoned_rows)
REUSE = on(states.check_slot_reuse)
ROUNDS = on(drafts.check_rounds)
DRAFT_PREFILL = on(drafts.check_prefill)
PREFILL = on(target.check_prefill, "off", 0)
VERIFY_ROWS = on(target.check_verify, "off", 0)
MROPE = on(target.check_mrope, "off", 0)
BITS = on(rows.check_verify_rows_equal_decode_rows, "off", 0)
GREEDY = on(texts.check_greedy)
SCRIPTED = on(texts.check_greedy, "scripted", 3)
ORACLE = on(texts.check_greedy, "oracle", 3)
SEEDED = on(texts.check_seeded)
SEEDED_ORACLE = on(texts.check_seeded, "oracle", 3)
STOPS = on(texts.check_stop_ids, "oracle", 7)
LIMITS = on(texts.check_limits, "oracle", 7)
ABORT = on(texts.check_abort)
REFERENCE_TEXT = on(texts.check_reference_text)
UNHELD = on(texts.check_unheld_pages)
DRAFT_LIMITS = on(texts.check_draft_limits)
EXPERTS = on(target.check_verify, "off", 0, tiny="moe")

MUTANTS = (
    Mutant(
        "commit one row short",
        RUNNER,
        "self.target.commit(step, kept)",
        "self.target.commit(step, (kept - 1).clamp(min=0))",
        SCRIPTED,
    ),
    Mutant(
        "commit every row",
        RUNNER,
        "self.target.commit(step, kept)",
        "self.target.commit(step, step.valid)",
        SCRIPTED,
    ),
    Mutant(
        "commit what the rule accepted, not what was cut",
        RUNNER,
        "kept = torch.where(rows.active, kept, 0)",
        "kept = torch.where(rows.active, outcome.accepted + 1, 0)",
        LIMITS,
    ),
    Mutant("a finished request keeps decoding", RUNNER, "(finish > 0) | failed", "failed", STOPS),
    Mutant(
        "drafts beyond max_tokens",
        RUNNER,
        "rows.max_tokens - rows.generated - 1",
        "rows.max_tokens - rows.generated + 9",
        LIMITS,
    ),
    Mutant(
        "drafts beyond the request's own limit",
        RUNNER,
        "torch.minimum(rows.drafts, room)",
        "room",
        DRAFT_LIMITS,
    ),
    Mutant(
        "verify rows one position late",
        RUNNER,
        "positions = rows.committed[:, None] + self._rows",
        "positions = rows.committed[:, None] + self._rows + 1",
        ORACLE,
    ),
    Mutant(
        "the random key of a position one early",
        RUNNER,
        "rows.sampling, rows.committed + 1",
        "rows.sampling, rows.committed + 0 * rows.committed",
        REFERENCE_TEXT,
    ),
    Mutant(
        "only one layer's state commits",
        TARGET,
        "for layer, staged in self._staged.items():",
        "for layer, staged in list(self._staged.items())[:1]:",
        ACCEPTS,
    ),
    Mutant(
        "the recurrent state alone commits",
        TARGET,
        "self.states.commit_conv(place, step.slots, staged.conv_inputs, kept)",
        "None",
        ACCEPTS,
    ),
    Mutant(
        "the conv state alone commits",
        TARGET,
        "self.states.commit_recurrent(place, step.slots, moved)",
        "None",
        ACCEPTS,
    ),
    Mutant(
        "the forward moves the live state",
        TARGET,
        "output, self._staged[layer] = item.mixer(",
        "self.states.recurrent[place, slots] *= 0.5\n        output, self._staged[layer] = item.mixer(",
        ACCEPTS,
    ),
    Mutant("a slot is not emptied", TARGET, "self.states.reset(slot)", "None", REUSE),
    Mutant(
        "taps hold the layer's input",
        TARGET,
        "flat = flat + mlp(normed, item.weights.mlp, config, ops)\n            if layer in step.taps:\n                taps[layer] = rows.shaped(flat)",
        "if layer in step.taps:\n                taps[layer] = rows.shaped(flat)\n            flat = flat + mlp(normed, item.weights.mlp, config, ops)",
        VERIFY_ROWS,
    ),
    Mutant(
        "conv state one column late",
        STATE,
        "index = (kept[:, None] + columns)",
        "index = ((kept[:, None] + columns + 1).clamp(max=conv_inputs.shape[1] - 1))",
        ACCEPTS,
    ),
    Mutant(
        "kept rows counted one short in the recurrence",
        OPS,
        "keep = (row < kept)",
        "keep = (row + 1 < kept)",
        ACCEPTS,
    ),
    Mutant(
        "the state is read before the write",
        OPS,
        "outputs.append((state * heads[..., None]).sum(-2))",
        "outputs.append(((state - 0.01 * state) * heads[..., None]).sum(-2))",
        VERIFY_ROWS,
    ),
    Mutant(
        "decay after the read",
        OPS,
        "read = (state * key).sum(-2)",
        "read = (state * key / torch.exp(staged.decay[:, row])[..., None, None]).sum(-2)",
        VERIFY_ROWS,
    ),
    Mutant(
        "key heads tiled, not grouped",
        OPS,
        "key = staged.key[:, row].repeat_interleave(repeat, dim=1)[..., None]",
        "key = staged.key[:, row].repeat(1, repeat, 1)[..., None]",
        VERIFY_ROWS,
    ),
    Mutant(
        "padding rows of a chunk have beta",
        OPS,
        "beta = torch.where(real, staged.beta, 0.0)",
        "beta = torch.where(real | True, staged.beta, 0.0)",
        UNHELD,
    ),
    Mutant(
        "padding keys enter a chunk",
        OPS,
        "key = torch.where(real[..., None], staged.key, 0.0)",
        "key = torch.where(real[..., None] | True, staged.key, 0.0)",
        UNHELD,
    ),
    Mutant(
        "padding values enter a chunk",
        OPS,
        "value = torch.where(real[..., None], staged.value, 0.0)",
        "value = torch.where(real[..., None] | True, staged.value, 0.0)",
        UNHELD,
    ),
    Mutant(
        "padding rows of a chunk decay",
        OPS,
        "total = torch.where(real, staged.decay, 0.0)",
        "total = torch.where(real | True, staged.decay, 0.0)",
        PREFILL,
    ),
    Mutant(
        "a key beyond the row is seen",
        OPS,
        "seen = place <= positions[..., None]",
        "seen = place <= positions[..., None] + 1",
        VERIFY_ROWS,
    ),
    Mutant(
        "a row does not see itself",
        OPS,
        "seen = place <= positions[..., None]",
        "seen = (place < positions[..., None]) | (place == 0)",
        VERIFY_ROWS,
    ),
    Mutant(
        "stale values enter the product",
        OPS,
        "values = torch.where(used, values, 0.0)",
        "values = torch.where(used | True, values, 0.0)",
        POISON,
    ),
    Mutant(
        "attention splits rescaled wrongly",
        OPS,
        "total = total * scale + weight @ values",
        "total = total + weight @ values",
        VERIFY_ROWS,
    ),
    Mutant(
        "the product takes as many rows as there are",
        OPS,
        "return self._by_tile(lambda tile: functional.linear(tile, weight), rows)",
        "return (functional.linear(rows.double(), weight.double()) + 1e-9 * rows.shape[0]).to(rows.dtype)",
        BITS,
    ),
    Mutant(
        "the sigmoid with a tail of its own",
        OPS,
        "return 1 / (1 + torch.exp(-x))",
        "return torch.sigmoid(x) + 1e-7 * x.shape[0]",
        BITS,
    ),
    Mutant(
        "an unselected expert takes part",
        OPS,
        "experts_per_token, dim=-1)",
        "experts_per_token + 1, dim=-1)",
        EXPERTS,
    ),
    Mutant(
        "the shared expert without its gate",
        OPS,
        "return total + shared_gate * functional.linear(inner, weights.shared_down)",
        "return total + functional.linear(inner, weights.shared_down)",
        EXPERTS,
    ),
    Mutant(
        "router weights not renormalised", OPS, "chosen / chosen.sum(-1, keepdim=True)", "chosen", EXPERTS
    ),
    Mutant(
        "gate and query halves swapped",
        LAYERS,
        "query = ops.rms_norm(joint[:, :, 0]",
        "query = ops.rms_norm(joint[:, :, 1]",
        VERIFY_ROWS,
    ),
    Mutant("no output gate", LAYERS, "mixed * sigmoid(gate)", "mixed", VERIFY_ROWS),
    Mutant(
        "conv taps reversed",
        LAYERS,
        "inputs[:, tap : tap + count] * taps[:, tap]",
        "inputs[:, tap : tap + count] * taps[:, -tap]",
        VERIFY_ROWS,
    ),
    Mutant("query scale left out", LAYERS, "* config.linear_key_dim**-0.5", "", VERIFY_ROWS),
    Mutant(
        "one axis for all",
        LAYERS,
        "[..., self.axis].to(torch.float32)",
        "[..., 0 * self.axis].to(torch.float32)",
        MROPE,
    ),
    Mutant(
        "norms without the one",
        "ft.fast.families.qwen3_5.prepare",
        "return 1.0 + self.plain(stored)",
        "return self.plain(stored)",
        VERIFY_ROWS,
    ),
    Mutant(
        "padding rows write to page 0",
        PAGED,
        "pages = torch.where(rows[None] < valid[:, None], pages, self.dummy)",
        "pages = torch.where(rows[None] < valid[:, None], pages, 0 * pages)",
        NEIGHBOURS,
    ),
    Mutant(
        "a page too few",
        PAGED,
        "return -(-tokens // self.page_size)",
        "return max(1, tokens // self.page_size)",
        UNHELD,
    ),
    Mutant("pages are not returned", PAGED, "self._free.extend(reversed(taken))", "None", GREEDY),
    Mutant(
        "draft norm skipped",
        DRAFTS,
        "return rows.shaped(ops.rms_norm(flat, weights.norm, eps))",
        "return rows.shaped(flat)",
        ROUNDS,
    ),
    Mutant(
        "hidden first in the fusion",
        DRAFTS,
        "torch.cat(joined, dim=-1)",
        "torch.cat(joined[::-1], dim=-1)",
        ROUNDS,
    ),
    Mutant(
        "the chain's entries survive",
        MTP,
        "self._extend(step, features.final_hidden, ids, verdict.cut)",
        "self._extend(step, features.final_hidden, ids, verdict.cut.clamp(max=1))",
        ROUNDS,
    ),
    Mutant(
        "the chain starts from the first kept row",
        MTP,
        "last = (kept - 1).clamp(min=0)",
        "last = (0 * kept)",
        ROUNDS,
    ),
    Mutant(
        "the draft is fed the pending row's own token",
        MTP,
        "ids = verdict.emitted.clamp(min=0)",
        "ids = step.token_ids",
        ROUNDS,
    ),
    Mutant(
        "a prompt row is paired with itself",
        MTP,
        "self._extend(step, features.final_hidden, next_ids, step.valid)",
        "self._extend(step, features.final_hidden, step.token_ids, step.valid)",
        DRAFT_PREFILL,
    ),
    Mutant(
        "the chain one position late", MTP, "place = position + index - 1", "place = position + index", ROUNDS
    ),
    Mutant(
        "drafts out of nothing",
        MTP,
        "counts = torch.where(position > 0, counts, 0)",
        "counts = torch.where(position >= 0, counts, 0)",
        on(drafts.check_nothing_to_draft_from),
    ),
    Mutant(
        "the pending token is the first of the run",
        TABLE,
        "(cut - 1).clamp(min=0)[:, None]",
        "(0 * cut)[:, None]",
        ORACLE,
    ),
    Mutant(
        "committed counts accepted drafts only",
        TABLE,
        "self.committed[slots] = rows.committed + cut",
        "self.committed[slots] = rows.committed + (cut - 1).clamp(min=0)",
        ORACLE,
    ),
    Mutant("a seed is shared", TABLE, "self.seed[slot] = signed(seed)", "self.seed[slot] = 1 + slot", SEEDED),
    Mutant(
        "a stop id wins only at the end of the run",
        CUT,
        "stops = (emitted[:, :, None] == stop_ids[:, None, :]).any(-1)",
        "stops = (emitted[:, :, None] == stop_ids[:, None, :]).any(-1) & (index == accepted[:, None])",
        STOPS,
    ),
    Mutant(
        "length wins over a stop",
        CUT,
        "stopped = stops.gather(1, kept[:, None] - 1)[:, 0]",
        "stopped = stops.gather(1, kept[:, None] - 1)[:, 0] & ~spent.gather(1, kept[:, None] - 1)[:, 0]",
        STOPS,
    ),
    Mutant(
        "one token beyond max_tokens",
        CUT,
        "index + 1 >= max_tokens[:, None]",
        "index >= max_tokens[:, None]",
        LIMITS,
    ),
    Mutant("one token beyond the context", CUT, "index + 2 >= context", "index + 1 >= context", LIMITS),
    Mutant(
        "results reach an aborted request", ENGINE, "if record.finished or not cut:", "if not cut:", ABORT
    ),
    Mutant(
        "an aborted request keeps its slot",
        SCHEDULER,
        "self._free_slots.append(record.lease.slot)",
        "None",
        ABORT,
    ),
    Mutant(
        "the last prompt token is prefilled too",
        SCHEDULER,
        "return len(self.request.prompt) - 1",
        "return len(self.request.prompt) - 2 if len(self.request.prompt) > 2 else len(self.request.prompt) - 1",
        REFERENCE_TEXT,
    ),
)

EVERY_MUTANT = (*MUTANTS, *law_mutants(on))
