"""What the outbox measures of effects and of Redis. Names and meanings are the catalogue's."""

from shared.events.effects import EffectKind, EffectState
from shared.telemetry import catalogue
from shared.telemetry.instruments import ReadGauge, at_zero, counter, gauge, histogram

EFFECTS = counter(catalogue.EFFECTS)
at_zero(EFFECTS, [kind.value for kind in EffectKind], [state.value for state in EffectState])
EFFECT_CALLS = counter(catalogue.EFFECT_CALLS)
EFFECT_CALL_SECONDS = histogram(catalogue.EFFECT_CALL_SECONDS)
EFFECTS_REPEATED = counter(catalogue.EFFECTS_REPEATED)
EFFECTS_RESENT = counter(catalogue.EFFECTS_RESENT)
EFFECTS_WAITING = ReadGauge(catalogue.EFFECTS_WAITING)
CIRCUITS_OPEN = gauge(catalogue.CIRCUITS_OPEN)
REDIS_TRUSTED = gauge(catalogue.REDIS_TRUSTED)
REDIS_DISTRUSTED = counter(catalogue.REDIS_DISTRUSTED)
REDIS_REBUILT = counter(catalogue.REDIS_REBUILT)
