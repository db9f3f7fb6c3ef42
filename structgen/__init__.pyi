"""The public names of structgen; ``structgen/__init__.py`` reads this file."""

from structgen import (
    diffusion as diffusion,
    drafters as drafters,
    errors as errors,
    grammars as grammars,
    policies as policies,
    potentials as potentials,
    samplers as samplers,
    shapes as shapes,
    verification as verification,
)
from structgen.decode import (
    Autoregressive as Autoregressive,
    Result as Result,
    generate as generate,
)
from structgen.decode.diffusion.commit_policy import (
    Unmasking as Unmasking,
)
from structgen.decode.sample import (
    sample as sample,
)
from structgen.decode.step.sampler import (
    Greedy as Greedy,
    Multinomial as Multinomial,
)

# Moved: these names work from here for one release, with a warning that says the new place.
from structgen.diffusion import (
    AdaptiveParallel as AdaptiveParallel,
    DelayedReuse as DelayedReuse,
    Dingo as Dingo,
    DualReuse as DualReuse,
    FreeDave as FreeDave,
    Posterior as Posterior,
    PrefixReuse as PrefixReuse,
    Recorder as Recorder,
    SelfSpeculative as SelfSpeculative,
    replay_page as replay_page,
)
from structgen.drafters import (
    CostModel as CostModel,
    DraftStats as DraftStats,
    Speculation as Speculation,
)
from structgen.engine import (
    Constraint as Constraint,
    Matcher as Matcher,
    Vocabulary as Vocabulary,
    compile as compile,
    fill_masks as fill_masks,
)
from structgen.engine.matcher import (
    Explanation as Explanation,
)
from structgen.errors import (
    BudgetError as BudgetError,
    DraftWarning as DraftWarning,
    GenerationError as GenerationError,
    GrammarError as GrammarError,
    LimitExceeded as LimitExceeded,
    ModelError as ModelError,
    ProgramError as ProgramError,
    StructgenError as StructgenError,
    ValidationFailed as ValidationFailed,
    VocabularyError as VocabularyError,
)
from structgen.frontends.bnf import ebnf as ebnf, gbnf as gbnf
from structgen.frontends.json_schema import (
    json_schema as json_schema,
)
from structgen.frontends.lark import (
    lark as lark,
)
from structgen.frontends.loading import (
    load as load,
)
from structgen.frontends.regex import (
    regex as regex,
)
from structgen.frontends.structural_tag import (
    structural_tag as structural_tag,
)
from structgen.grammar.algebra import (
    optional as optional,
    select as select,
)
from structgen.grammar.limits import (
    Limits as Limits,
)
from structgen.grammar.nodes import (
    Grammar as Grammar,
    literal as literal,
)
from structgen.grammars import (
    NEWLINE as NEWLINE,
    Indentation as Indentation,
    JsonPolicy as JsonPolicy,
    Lark as Lark,
    Regex as Regex,
    answer as answer,
    any_text as any_text,
    block as block,
    hole as hole,
    indented as indented,
    read_reply as read_reply,
    select_grammar as select_grammar,
    substring_of as substring_of,
    text as text,
    think as think,
    token as token,
    tool_calls as tool_calls,
    write as write,
)
from structgen.integrations.openai_server import (
    remote as remote,
)
from structgen.memory_cache import (
    cache_limits as cache_limits,
    clear_caches as clear_caches,
    memory as memory,
)
from structgen.methods.infilling import (
    infill as infill,
)
from structgen.models import (
    load_diffusion_model as load_diffusion_model,
    load_model as load_model,
)
from structgen.policies import (
    CreditDecoding as CreditDecoding,
    EntropyBound as EntropyBound,
    Explore as Explore,
    Factor as Factor,
    Learned as Learned,
    LocalLeap as LocalLeap,
    Prophet as Prophet,
    Static as Static,
    Threshold as Threshold,
)
from structgen.potentials import (
    Hypothesis as Hypothesis,
    Potential as Potential,
    monitor as monitor,
    ordered as ordered,
    potential as potential,
    refers as refers,
    unique as unique,
)
from structgen.program import (
    Run as Run,
    agent as agent,
    ask as ask,
    assistant as assistant,
    fork as fork,
    program as program,
    system as system,
    tool as tool,
    user as user,
)
from structgen.program.extraction import (
    extract as extract,
)
from structgen.samplers import (
    AWRS as AWRS,
    SMC as SMC,
    ASAp as ASAp,
    Beam as Beam,
    BestOf as BestOf,
    ExactBest as ExactBest,
    Lookahead as Lookahead,
    NGram as NGram,
    RejectionTrie as RejectionTrie,
    Samples as Samples,
)

__version__: str

__all__ = [
    "Autoregressive",
    "Constraint",
    "Grammar",
    "Greedy",
    "Limits",
    "Matcher",
    "Multinomial",
    "Result",
    "Unmasking",
    "Vocabulary",
    "compile",
    "ebnf",
    "extract",
    "fill_masks",
    "gbnf",
    "generate",
    "infill",
    "json_schema",
    "lark",
    "literal",
    "load",
    "load_diffusion_model",
    "load_model",
    "optional",
    "program",
    "regex",
    "sample",
    "select",
    "structural_tag",
]
