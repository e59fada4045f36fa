package cuda

// Do calls f with the GPU's primary context current and the goroutine locked to
// its thread. It is for setting up what launchers use, such as modules. Batches
// are not enqueued meanwhile, so f must not call the device.
func (d *Device) Do(f func() error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.usable(); err != nil {
		return err
	}
	previous, err := d.drv.bind()
	if err != nil {
		return d.answered(err)
	}
	defer d.drv.unbind(previous)
	return d.answered(f())
}
