"""Seeded faults in sampling, verification, logit edits, grammars and log probabilities."""

from collections.abc import Callable

from ft.contracts.checks import laws, texts
from ft.contracts.law.boxes import fast_box
from ft.contracts.law.cases import CASES, EXACT, distance
from ft.contracts.mutate import Mutant

VERIFY = "ft.fast.verify"
DRAFT_LAW = "ft.fast.draft_law"
DRAFTING = "ft.fast.drafting"
SAMPLING = "ft.fast.sampling"
EDITS = "ft.fast.edits"
EDIT_TABLE = "ft.fast.edit_table"
LOGPROBS = "ft.fast.logprobs"
MASKS = "ft.fast.masks"
TABLE = "ft.fast.table"
ENGINE = "ft.fast.engine"
RUNNER = "ft.fast.spec.runner"
MTP = "ft.fast.spec.mtp"

On = Callable[..., Callable[[], None]]


def law(name: str) -> Callable[[], None]:
    """The enumeration of one case."""

    def run() -> None:
        found = distance(lambda case: fast_box(case.setup, case.told), CASES[name], 2)
        assert found <= EXACT, f"{name}: total variation {found:.2e}"

    return run


def law_mutants(on: On) -> tuple[Mutant, ...]:
    """on: a contract on one cell of the matrix."""
    reference_text = on(texts.check_reference_text)
    leaving = on(laws.check_edits_leave_with_their_request)
    counted = on(laws.check_counts_of_rejected_drafts, "oracle", 3)
    grammar, logprobs, block = on(laws.check_grammar), on(laws.check_logprobs), on(laws.check_block)
    found = (
        ("p and q change places in the coin", VERIFY, "coins * laws.at_draft < at_draft", "coins * at_draft < laws.at_draft", law("plain")),
        ("drafts beyond k_eff are judged", VERIFY, "(passed & real)", "passed", law("mixed counts")),
        ("the weight of a block is not capped", VERIFY, "torch.minimum(weight * ratio, torch.ones_like(weight))", "weight * ratio", law("block: plain")),
        ("equal candidates overlap twice", VERIFY, "torch.where(laws.first[:, index + 1], overlap, 0.0)", "overlap", law("block: duplicate candidates")),
        ("a block's last draft is judged like the others", VERIFY, "torch.where(counts == index + 1, weight, middle)", "middle", law("block: plain")),
        ("a block keeps the weight of a rejected draft", VERIFY, "kept = torch.where(passed, weight, kept)", "kept = weight", law("block: plain")),
        ("a block accepts its first coins only", VERIFY, "accepted = torch.where(passed, index + 1, accepted)", "accepted = torch.where(passed & (accepted == index), index + 1, accepted)", law("block: plain")),
        ("the last draw takes the coin's number", VERIFY, "Stream.FINAL", "Stream.COIN", reference_text),
        ("the last draw is keyed by no step", VERIFY, "positions + accepted, Stream.FINAL, positions)", "positions + accepted, Stream.FINAL, positions * 0)", reference_text),
        ("coins of the next position", VERIFY, "places.flatten(), Stream.COIN", "places.flatten() + 1, Stream.COIN", reference_text),
        ("drafts take the last draw's number", DRAFTING, "Stream.DRAFT", "Stream.FINAL", reference_text),
        ("q is not renormalised", DRAFT_LAW, "divisor = total.clamp(min=1).double()", "divisor = torch.full_like(total, int(UNIT)).double()", law("total trusted, then renormalised")),
        ("equal candidates are not added up", DRAFT_LAW, "merged = torch.where(equal, mass[..., None, :], 0).sum(-1)", "merged = mass", law("duplicate candidates")),
        ("an untrusted q is judged as it is told", DRAFT_LAW, "trusted = sound.all(-1, keepdim=True) & close & (drawn > 0)", "trusted = drawn > 0", law("wrong shape, wrong total")),
        ("min-p is taken for its logarithm", SAMPLING, "torch.log(rows.min_p)", "-rows.min_p", law("min-p")),
        ("top-p looks at the mass with the token", SAMPLING, "(before.double() < limit)", "((before + mass).double() < limit)", law("temperature, top-p")),
        ("top-p of the whole row, not of the survivors", SAMPLING, "torch.exp(torch.where(ordered < kth, -math.inf, ordered))", "torch.exp(ordered)", law("top-k, top-p, min-p")),
        ("temperature is left out", SAMPLING, "scaled = row / temperature[:, None]", "scaled = row * 1.0", law("temperature, top-k")),
        ("bias with the wrong sign", EDITS, "self.rows.bias_ids.clamp(min=0), self.rows.bias)", "self.rows.bias_ids.clamp(min=0), -self.rows.bias)", law("logit bias")),
        ("allowed ids are not enforced", EDITS, "return torch.where(self._allowed, row, -math.inf)", "return row", law("allowed ids")),
        ("minimum length is one too long", EDITS, "self.texts.generated + before < self.rows.min_tokens", "self.texts.generated + before <= self.rows.min_tokens", law("minimum length")),
        ("minimum length counts steps", EDITS, "self.texts.generated + before <", "self.texts.generated <", law("minimum length")),
        ("the prompt counts for frequency", EDITS, "known & (self._places >= self.texts.prompt[:, None])", "known", law("penalties")),
        ("the prompt does not count for repetition", EDITS, "seen = (counts > 0) | self._prompted", "seen = counts > 0", law("penalties")),
        ("penalties see no drafts", EDITS, "counts = counts + self._counted(", "counts = counts + 0 * self._counted(", law("penalties")),
        ("repetition raises what it should lower", EDITS, "torch.where(row > 0, row / repetition", "torch.where(row < 0, row / repetition", law("penalties")),
        ("presence counts", EDITS, "self.rows.presence[:, None] * (counts > 0)", "self.rows.presence[:, None] * counts", law("penalties")),
        ("bad words end one token early", EDITS, "[:, None] - before\n", "[:, None] - before - 1\n", law("bad words")),
        ("a bad word needs no first part", EDITS, "matched = ((first == UNUSED) | (first == tail[:, None])).all(-1)", "matched = (first == first).all(-1)", law("bad words")),
        ("grammar bits from the other end", EDITS, ">> (ids % 32)", ">> (4 - ids % 32)", law("grammar")),
        ("thinking goes on for one token more", EDITS, "(place >= 0) & (place < length)", "(place > 0) & (place < length)", law("thinking budget")),
        ("thinking that has ended is ended again", EDITS, " & ~self._thinking_ended(drafts)", "", law("thinking may end by itself")),
        ("accepted drafts are not recorded", TABLE, "index < cut[:, None], rows.committed[:, None] + 1 + index", "index < 1, rows.committed[:, None] + 1 + index", counted),
        ("the pending token is not counted", TABLE, "self.committed[slots] + 1, self.prompt", "self.committed[slots], self.prompt", logprobs),
        ("bad words of the last request stay", EDIT_TABLE, "self.bad_words[slot] = UNUSED", "self.bad_words[slot, 60:] = UNUSED", leaving),
        ("penalties of the last request stay", EDIT_TABLE, "self.presence[slot] = edits.presence_penalty", "self.presence[slot] += edits.presence_penalty", leaving),
        ("one grammar mask for every row", MASKS, "grammar.row(before)", "grammar.row(())", grammar),
        ("masks are asked before the last step has landed", ENGINE, "updates += self._land_flight()", "pass", grammar),
        ("the grammar does not advance", ENGINE, "if grammar is not None and not grammar.accept(tokens)", "if grammar is not None and not grammar.accept(())", grammar),
        ("raw log probabilities after the edits", RUNNER, "logits, edited, outcome.emitted", "edited, edited, outcome.emitted", logprobs),
        ("log probabilities of the first row", LOGPROBS, "sanitised(raw[:, index])", "sanitised(raw[:, 0])", logprobs),
        ("processed and raw change places", LOGPROBS, "torch.where(processed[:, None], law, own)", "torch.where(processed[:, None], own, law)", logprobs),
        ("log probabilities of the likeliest token", LOGPROBS, "chosen = row.gather(1, emitted[:, index : index + 1].clamp(min=0))[:, 0]", "chosen = row.amax(-1)", logprobs),
        ("drafts do not see the edits", MTP, "logits = rows.editor.edited(", "rows.editor.edited(", block),
    )  # fmt: skip
    return tuple(Mutant(*one) for one in found)
