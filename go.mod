module offload

go 1.26

require github.com/looplab/fsm v1.0.3
