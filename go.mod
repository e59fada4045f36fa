module offload

go 1.26
