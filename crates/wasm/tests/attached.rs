//! Modules on a card that programs share: the daemon compiles them, and they run there.

#[path = "../../remora/tests/daemon/mod.rs"]
mod daemon;
#[path = "../../remora/tests/support/mod.rs"]
mod support;

use daemon::Daemon;
use remora::daemon::ServerOptions;
use remora::kernel::{Bound, Deployment, Loader};
use remora::nic::queue::{Data, SendFlags, SendOp, SendRequest, Status};
use remora_wasm::Module;
use support::{PATIENCE, connect, end, end_on};

#[test]
fn modules_are_compiled_by_the_daemon_and_run_there() {
    let text = r#"(module
        (import "remora" "params" (func $params (param i32 i32) (result i32)))
        (import "remora" "output" (func $output (param i32 i32) (result i32)))
        (memory (export "memory") 1)
        (func (export "kernel") (result i32)
            (drop (call $params (i32.const 0) (i32.const 64)))
            (call $output (i32.const 0) (i32.const 5)))
        (func (export "tap") (result i32) (i32.const 0)))"#;
    let module = Module::load(&wat::parse_str(text).unwrap()).unwrap();
    let loader = Some(remora_wasm::load as Loader);
    let daemon = Daemon::serving(ServerOptions { loader, ..ServerOptions::default() });
    let (a, b) = (end(), end_on(daemon.attach()));
    let mut client = connect(&a, &b);
    b.device.load_kernel(17, Deployment::new("echo", []), &module).unwrap();
    let mut out = Vec::new();
    client.call(17, b"hello", &mut out).unwrap();
    assert_eq!(out, b"hello");
    let to = Bound::Receive(b.qp.qpn());
    let binding = b.device.bind_module(to, vec![b.memory.grant_read()], &module, 1000).unwrap();
    a.memory.write_at(0, b"seen").unwrap();
    let op = SendOp::Write { to: b.memory.remote(0), imm: None };
    let (sges, flags) = ([a.memory.sge(0, 4)], SendFlags::SIGNALED);
    a.qp.post_send(&SendRequest { wr_id: 1, op, data: Data::Sges(&sges), flags }).unwrap();
    assert_eq!(a.send_cq.spin(PATIENCE).unwrap().status, Status::Success);
    assert_eq!(binding.info().payloads, 1);
    // While a module is compiled, others are served; and what nobody waits for is forgotten.
    let other = daemon.attach();
    other.load_kernel(17, Deployment::new("echo", []), &module).unwrap();
    assert_eq!(other.kernels().len(), 1);
}
