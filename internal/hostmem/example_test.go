package hostmem_test

import (
	"fmt"

	"offload/device"
	"offload/internal/hostmem"
)

func Example() {
	ids := new(device.IDs) // device.NewIDs(dev)
	p := hostmem.New[device.Event](hostmem.Config{Budget: 1 << 30}, ids)

	first, ops, err := p.Take(33 << 20)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("submit:", ops)
	fmt.Println("copy out to", first.Ranges())

	// The last reader of the bytes is a copy in; an event marks its end.
	read := ids.Event()
	p.Give(first, read)

	second, ops, _ := p.Take(20 << 20)
	fmt.Println("submit:", ops)
	fmt.Println("wait for", second.Fences(), "before copying out to", second.Ranges())
	// Output:
	// submit: [pin d0/h0.0#1[0:69206016]]
	// copy out to [d0/h0.0#1[0:34603008]]
	// submit: []
	// wait for [d0/e0.0#1] before copying out to [d0/h0.0#1[0:20971520]]
}
