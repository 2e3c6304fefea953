//! Modules on a card that programs share: the daemon compiles them, and they run there.

#[path = "../../remora/tests/daemon/mod.rs"]
mod daemon;
#[path = "../../remora/tests/support/mod.rs"]
mod support;

use daemon::Daemon;
use remora::daemon::Policy;
use remora::daemon::ServerOptions;
use remora::kernel::{Bound, CallFailure, CallStatus, Deployment, Loader};
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

/// A module whose instances have so many MiB of memory at first, and answer nothing.
fn of_memory(mib: u32) -> Module {
    let text = format!(
        r#"(module (memory (export "memory") {})
            (func (export "kernel") (result i32) (i32.const 0)))"#,
        mib * 16
    );
    Module::load(&wat::parse_str(text).unwrap()).unwrap()
}

#[test]
fn instances_have_no_more_memory_than_their_user() {
    let policy = std::env::temp_dir().join(format!("remora-instances-{}.toml", std::process::id()));
    let own = rustix::process::geteuid().as_raw();
    std::fs::write(&policy, format!("[users.{own}]\nkernel_memory_bytes = 3145728\n")).unwrap();
    let loader = Some(remora_wasm::load as Loader);
    let read = Policy::read(&policy).unwrap();
    let daemon = Daemon::serving(ServerOptions { loader, policy: read, ..Default::default() });
    std::fs::remove_file(policy).unwrap();
    let servers = [(); 2].map(|()| end_on(daemon.attach()));
    let clients = [(); 2].map(|()| end());
    let (two, four) = (of_memory(2), of_memory(4));
    for server in &servers {
        server.device.load_kernel(17, Deployment::new("two", []), &two).unwrap();
    }
    let [mut one, mut other] = [0, 1].map(|n| connect(&clients[n], &servers[n]));
    let mut out = Vec::new();
    one.call(17, b"", &mut out).unwrap();
    let full = other.call(17, b"", &mut out).unwrap_err();
    assert!(matches!(full, CallFailure::Status(CallStatus::MEMORY)), "{full:?}");
    servers[0].device.undeploy(17).unwrap();
    other.call(17, b"", &mut out).unwrap();
    // What never could run is refused with words, in the place of another kernel, too.
    let refused = servers[0].device.load_kernel(17, Deployment::new("four", []), &four);
    let words = refused.unwrap_err().to_string();
    assert!(words.contains("4194304") && words.contains("3145728"), "{words}");
    let device = &servers[1].device;
    let refused = device.replace_by_module(17, Deployment::new("four", []), &four);
    assert!(refused.unwrap_err().to_string().contains("4194304"));
    device.replace_by_module(17, Deployment::new("again", []), &two).unwrap();
    assert_eq!(device.kernels()[0].name, "again");
}
