"""Logit edits, grammars, log probabilities and block verification, through the engine and against the reference."""

from dataclasses import replace

import torch

from ft.contracts.checks.texts import check_same_text, prompts
from ft.contracts.compare import assert_tokens
from ft.contracts.grammar import RuleGrammar, allowed, may_follow
from ft.contracts.oracle import ReferenceBench
from ft.contracts.rig import Setting, run, tokens
from ft.fast.request import FinishReason, Request, Update
from ft.reference.types import Edits, Sampling, ThinkingBudget, Verification

PENALTIES = Edits(repetition_penalty=1.3, frequency_penalty=0.5, presence_penalty=-0.3)

EDITS = (
    Edits(logit_bias=((3, 4.0), (5, -100.0), (17, 2.5))),
    PENALTIES,
    Edits(min_tokens=9),
    Edits(allowed_ids=tuple(range(2, 60, 3)), frequency_penalty=1.5),
    Edits(
        bad_words=tuple((first, second) for first in range(7) for second in range(8)) + ((11,), (12, 13, 14))
    ),
    Edits(thinking=ThinkingBudget(6, (90, 91, 92))),
    replace(PENALTIES, logit_bias=((1, 3.0),), bad_words=((1, 1),), min_tokens=12),
)
"""Every edit that a request may ask for; ids below 97, the smallest vocabulary of the tiny checkpoints."""

LAWS = (
    Sampling(),
    Sampling(temperature=1.0, seed=21),
    Sampling(temperature=0.8, top_k=30, top_p=0.95, min_p=0.01, seed=22),
)

LOGPROBS = 1e-4
"""fp32 against the reference, in nats."""


def edited_requests(vocabulary: int, max_tokens: int) -> list[Request]:
    """One request an edit, greedy and seeded laws in turn, prompts of many lengths; stop ids are common tokens."""
    lengths = (1, 2, 10, 64, 65, 3, 5)
    return [
        Request(
            str(index),
            prompt,
            max_tokens,
            replace(LAWS[index % len(LAWS)], edits=edits),
            stop_ids=tuple(range(20, 30)) if edits.min_tokens else (),
        )
        for index, (prompt, edits) in enumerate(
            zip(prompts(vocabulary, lengths, seed=15), EDITS, strict=True)
        )
    ]


def check_edited_text(setting: Setting, vocabulary: int, max_tokens: int = 24) -> None:
    """Text under edits, in company and with drafts, is the text alone without."""
    check_same_text(setting, edited_requests(vocabulary, max_tokens))


def check_edits_hold(setting: Setting, vocabulary: int) -> None:
    """What each edit promises is true of the text, whatever was drafted."""
    prompt = prompts(vocabulary, (9,), seed=23)[0]
    plain = tokens(run(setting.off().engine(), [Request("plain", prompt, 24)])["plain"])
    banned = Edits(logit_bias=((plain[0], -100.0),))
    forced = Edits(logit_bias=((7, 100.0),))
    listed = [
        Request("banned", prompt, 24, Sampling(edits=banned)),
        Request("forced", prompt, 24, Sampling(edits=forced)),
        Request("short", prompt, 24, Sampling(edits=Edits(min_tokens=5)), stop_ids=(plain[0], plain[1])),
        Request("thought", prompt, 24, Sampling(edits=Edits(thinking=ThinkingBudget(5, (90, 91))))),
        Request(
            "alternating", prompt, 24, Sampling(edits=Edits(allowed_ids=(4, 6), bad_words=((4, 4), (6, 6))))
        ),
    ]
    texts = {name: tokens(updates) for name, updates in run(setting.engine({prompt: plain}), listed).items()}
    assert plain[0] not in texts["banned"], "a banned token was emitted"
    assert texts["forced"] == [7] * 24, f"logit_bias 100 was not obeyed: {texts['forced']}"
    assert len(texts["short"]) >= 5, f"{len(texts['short'])} tokens, min_tokens is 5"
    assert texts["thought"][5:7] == [90, 91], f"thinking ended by {texts['thought'][:8]}, budget 5"
    pairs = set(zip(texts["alternating"], texts["alternating"][1:], strict=False))
    assert pairs == {(4, 6), (6, 4)}, f"bad words let {pairs} pass"


def check_counts_of_rejected_drafts(setting: Setting, vocabulary: int) -> None:
    """Penalties count what was emitted: rejected drafts leave no trace, accepted ones count once."""
    prompt = prompts(vocabulary, (12,), seed=24)[0]
    liked = Edits(logit_bias=tuple((token, 12.0 - token) for token in range(2, 12)))
    for edits in (
        replace(liked, frequency_penalty=2.0),
        replace(liked, presence_penalty=2.0),
        replace(liked, repetition_penalty=3.0),
    ):
        check_same_text(setting, [Request("counted", prompt, 40, Sampling(edits=edits))])


def check_edits_leave_with_their_request(setting: Setting, vocabulary: int) -> None:
    """A slot keeps nothing of the edits of the request before."""
    engine = replace(setting, requests=1).engine({prompt: [0] * 30 for prompt in map(_prompt, range(9))})
    for index, edits in enumerate(EDITS):
        run(engine, [Request(f"edited {index}", _prompt(index), 8, Sampling(edits=edits))])
        after = Request(f"after {index}", _prompt(index), 16, Sampling(edits=Edits(min_tokens=1)))
        alone = run(setting.off().engine(), [after])[after.id]
        assert_tokens(after.id, tokens(alone), tokens(run(engine, [after])[after.id]))


def _prompt(index: int) -> tuple[int, ...]:
    return (index + 1, 5, 3)


def check_grammar(setting: Setting, vocabulary: int) -> None:
    """Text under a grammar obeys it, is the same with drafts, and is what the reference emits under the same rule."""
    plain: dict[str, list[Update]] = {}
    listed = grammar_requests(vocabulary)
    for request in listed:
        plain |= run(setting.off().engine(), [fresh(request, vocabulary)])
    known = {request.prompt: tokens(plain[request.id]) for request in listed}
    engine = setting.engine(known)
    drafted = run(engine, [fresh(request, vocabulary) for request in listed], joining=3)
    reference = ReferenceBench(setting.off())
    for request in listed:
        text = tokens(drafted[request.id])
        assert_tokens(f"grammar, request {request.id}", tokens(plain[request.id]), text)
        if request.grammar is not None:
            wrong = [i for i, token in enumerate(text) if not may_follow(text[:i], token)]
            assert not wrong, f"request {request.id}: tokens {wrong} break the grammar"
        wanted = reference.generate(
            request,
            0,
            setting.context,
            None if request.grammar is None else lambda output: allowed(output, vocabulary),
        )
        if setting.dtype == "float32":
            assert_tokens(f"reference under the grammar, {request.id}", list(wanted.tokens), text)
    accepted = sum(update.accepted for updates in drafted.values() for update in updates)
    assert accepted or setting.proposer == "off", "no draft was accepted under a grammar"


def grammar_requests(vocabulary: int) -> list[Request]:
    """Greedy and seeded requests with a grammar, one without."""
    listed = [
        Request(str(index), prompt, 20, law, grammar=RuleGrammar(vocabulary))
        for index, (prompt, law) in enumerate(
            zip(prompts(vocabulary, (5, 66, 2), seed=31), LAWS, strict=True)
        )
    ]
    return [*listed, replace(listed[0], id="free", grammar=None, prompt=listed[1].prompt[:9])]


def fresh(request: Request, vocabulary: int) -> Request:
    """The request with a grammar that has seen nothing."""
    return request if request.grammar is None else replace(request, grammar=RuleGrammar(vocabulary))


def check_grammar_failure(setting: Setting, vocabulary: int) -> None:
    """A request whose limits allow no token fails by name and disturbs no neighbour."""
    first, second = prompts(vocabulary, (5, 9), seed=33)
    nothing = Edits(bad_words=tuple((token,) for token in range(60)), allowed_ids=tuple(range(60)))
    neighbour = Request("neighbour", second, 20)
    plain = run(setting.off().engine(), [neighbour])["neighbour"]
    listed = [Request("nothing", first, 20, Sampling(edits=nothing)), neighbour]
    together = run(setting.engine({first: [0] * 20, second: tokens(plain)}), listed)
    end = together["nothing"][-1]
    assert end.finish == FinishReason.ERROR and end.error and "allow no token" in end.error, end
    assert not tokens(together["nothing"])
    assert_tokens("neighbour", tokens(plain), tokens(together["neighbour"]))


def check_logprobs(setting: Setting, vocabulary: int) -> None:
    """Log probabilities, raw and processed, have the same bits with drafts as without, and are the reference's."""
    listed = [
        replace(request, logprobs=index % 4, processed_logprobs=bool(index % 2))
        for index, request in enumerate(edited_requests(vocabulary, 14))
    ]
    listed.append(Request("none", listed[2].prompt[:-1] + (1,), 14))
    plain = run(setting.off().engine(), listed)
    known = {request.prompt: tokens(plain[request.id]) for request in listed}
    drafted = run(setting.engine(known), listed)
    reference = ReferenceBench(setting.off())
    for request in listed:
        name = f"request {request.id}"
        text = tokens(plain[request.id])
        assert_tokens(name, text, tokens(drafted[request.id]))
        have, want = ([one for u in run[request.id] for one in u.logprobs] for run in (drafted, plain))
        assert have == want, f"{name}: {have[:3]} with drafts, {want[:3]} without"
        if request.logprobs is None:
            assert not have, f"{name} was told log probabilities that it did not ask for"
            continue
        assert [one.token for one in have] == text, f"{name}: log probabilities of other tokens"
        assert all(len(one.top) == request.logprobs for one in have)
        assert all(list(one.top) == sorted(one.top, key=lambda pair: -pair[1]) for one in have)
        assert all(one.logprob <= one.top[0][1] for one in have if one.top)
        if setting.dtype == "float32":
            wanted = reference.generate(request, 0, setting.context)
            assert_tokens(f"reference, {name}", list(wanted.tokens), text)
            pairs = wanted.logprobs
            expected = torch.tensor([pair[request.processed_logprobs] for pair in pairs])
            found = torch.tensor([one.logprob for one in have])
            worst = float((expected - found).abs().max())
            assert worst <= LOGPROBS, f"{name}: off by {worst:.2e} nats from the reference"
            assert float(found.min()) < -0.01, f"{name}: every log probability is 0"


def check_block(setting: Setting, vocabulary: int) -> None:
    """Block verification in the engine emits what the reference loop does, filters and edits included."""
    block = Sampling(temperature=1.0, seed=5, verification=Verification.BLOCK)
    tilted = Edits(logit_bias=tuple((token, 2.0 * (token % 5 - 2)) for token in range(90)))
    kinds = (block, replace(block, top_k=20, top_p=0.9, edits=PENALTIES), replace(block, edits=tilted))
    listed = [
        Request(str(i), prompt, 18, kinds[i % len(kinds)])
        for i, prompt in enumerate(prompts(vocabulary, (2, 12, 66, 5), seed=35))
    ]
    together = run(setting.engine(), listed)
    reference = ReferenceBench(setting)
    for request in listed:
        wanted = reference.generate(request, setting.drafts, setting.context)
        updates = together[request.id]
        assert_tokens(f"block, request {request.id}", list(wanted.tokens), tokens(updates))
        steps = [(update.drafted, update.accepted, len(update.tokens)) for update in updates]
        assert steps == list(wanted.steps), f"request {request.id}: steps {steps}, expected {wanted.steps}"
