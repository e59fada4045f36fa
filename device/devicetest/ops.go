package devicetest

import "offload/device"

// Short names for operations.

func openStream(s device.Stream) device.Op  { return device.Op{Kind: device.OpenStream, Stream: s} }
func closeStream(s device.Stream) device.Op { return device.Op{Kind: device.CloseStream, Stream: s} }
func syncStream(s device.Stream) device.Op  { return device.Op{Kind: device.SyncStream, Stream: s} }
func syncEvent(e device.Event) device.Op    { return device.Op{Kind: device.SyncEvent, Event: e} }
func retire(e device.Event) device.Op       { return device.Op{Kind: device.Retire, Event: e} }
func pin(b device.Range) device.Op          { return device.Op{Kind: device.Pin, Dst: b} }
func unpin(b device.Range) device.Op        { return device.Op{Kind: device.Unpin, Dst: b} }
func hostRead(b device.Range) device.Op     { return device.Op{Kind: device.HostRead, Src: b} }
func hostWrite(b device.Range) device.Op    { return device.Op{Kind: device.HostWrite, Dst: b} }

func record(s device.Stream, e device.Event) device.Op {
	return device.Op{Kind: device.Record, Stream: s, Event: e}
}

func wait(s device.Stream, e device.Event) device.Op {
	return device.Op{Kind: device.Wait, Stream: s, Event: e}
}

func alloc(s device.Stream, b device.Range) device.Op {
	return device.Op{Kind: device.Alloc, Stream: s, Dst: b}
}

func free(s device.Stream, b device.Range) device.Op {
	return device.Op{Kind: device.Free, Stream: s, Dst: b}
}

func copyOut(s device.Stream, dst, src device.Range) device.Op {
	return device.Op{Kind: device.CopyOut, Stream: s, Dst: dst, Src: src}
}

func copyIn(s device.Stream, dst, src device.Range) device.Op {
	return device.Op{Kind: device.CopyIn, Stream: s, Dst: dst, Src: src}
}

func copyWithin(s device.Stream, dst, src device.Range) device.Op {
	return device.Op{Kind: device.CopyWithin, Stream: s, Dst: dst, Src: src}
}

func access(s device.Stream, k device.Kernel) device.Op {
	return device.Op{Kind: device.Access, Stream: s, Kernel: &k}
}

func launch(s device.Stream, k device.Kernel) device.Op {
	return device.Op{Kind: device.Launch, Stream: s, Kernel: &k}
}
