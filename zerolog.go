package offload

import "github.com/rs/zerolog"

// LogTo returns a listener that writes to log: failures as errors, passes at
// debug level, transitions and batches at trace level.
func LogTo(log zerolog.Logger) *EventListener {
	return &EventListener{
		PassBegun: func(i PassInfo) {
			log.Debug().Uint64("pass", i.Pass).Stringer("kind", i.Kind).Msg("pass begun")
		},
		PassEnded: func(i PassInfo) {
			at := log.Debug()
			if i.Err != nil {
				at = log.Error().Err(i.Err)
			}
			at.Uint64("pass", i.Pass).Stringer("kind", i.Kind).Bool("aborted", i.Aborted).Int("unused", i.Unused).Msg("pass ended")
		},
		Transition: func(i TransitionInfo) {
			log.Trace().Uint64("pass", i.Pass).Int("layer", i.Layer).Int("occurrence", i.Occurrence).
				Stringer("event", i.Event).Stringer("from", i.From).Stringer("to", i.To).Int("ops", i.Ops).Msg("transition")
		},
		Batch: func(i BatchInfo) {
			at := log.Trace()
			if i.Err != nil {
				at = log.Error().Err(i.Err)
			}
			at.Stringer("origin", i.Batch.Origin).Int("ops", len(i.Batch.Ops)).Msg("batch")
		},
		Panic: func(err *PanicError) {
			log.Error().Err(err).Bytes("stack", err.Stack).Msg("actor panicked")
		},
	}
}
