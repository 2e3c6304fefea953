//! The library in the life of a process: its descriptors, its signals, its threads that are
//! cancelled, its children, and its end.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod cm;

#[test]
fn exit_in_a_signals_handler_ends_the_process() {
    cm::runs("process/exit", "rdma_cma.h");
}

#[test]
fn no_thread_of_the_library_takes_a_signal_of_the_program() {
    cm::runs("process/signals", "rdma_cma.h");
}

#[test]
fn calls_that_wait_go_on_after_a_signals_handler() {
    cm::runs("process/interrupted", "rsocket.h");
}

#[test]
fn a_thread_is_cancelled_while_it_waits_in_a_call() {
    cm::runs("process/cancel", "rsocket.h");
}

#[test]
fn a_completion_channel_is_readable_while_an_event_waits() {
    cm::runs("process/channels", "rdma_cma.h");
}

#[test]
fn a_child_does_not_disturb_its_parents_completion_channels() {
    cm::runs("process/fork", "rdma_cma.h");
}
