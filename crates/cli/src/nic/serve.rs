//! `remora nic serve`: opens the card, takes what systemd has passed, and runs the daemon (which is
//! `remora::daemon`).

use std::env;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use remora::daemon::{FdStore, Policy, Restored, Server, ServerOptions, is_stored, take_passed};
use remora::kernel::Loader;
use remora_command::device::DeviceArgs;
use remora_command::{output, stop};
use rustix::process::getpid;
use serde_json::json;

use crate::child;

/// The daemon's options.
#[derive(Debug, Args)]
pub(super) struct Serve {
    #[command(flatten)]
    device: DeviceArgs,
    /// Where to listen [default: nic.sock in this user's folder below XDG_RUNTIME_DIR]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Who may attach, and what they may use: a file in TOML [default: this user and root]
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// Give a virtual machine a device by this socket, as QEMU’s ivshmem-doorbell: see docs/nic.md
    #[arg(long, value_name = "PATH")]
    machine: Vec<PathBuf>,
    /// Print a line of JSON when the daemon serves
    #[arg(long)]
    json: bool,
    /// End when standard input closes
    #[arg(long, hide = true)]
    child: bool,
}

impl Serve {
    pub(super) fn run(self) -> Result<()> {
        let Passed { listener, stored } = passed()?;
        let stop = stop::signals()?;
        if self.child {
            child::end_with_stdin()?;
        }
        let policy = match &self.policy {
            Some(path) => Policy::read(path)?,
            None => Policy::default(),
        };
        let device = self.device.options().embedded().open()?;
        let (socket, loader) = (self.socket.clone(), Some(remora_wasm::load as Loader));
        let options = ServerOptions { socket, policy, loader };
        let mut server = match listener {
            Some(listener) => Server::on(device.clone(), listener, options)?,
            None => Server::new(device.clone(), options)?,
        };
        self.machine.iter().try_for_each(|path| server.serve_machine(path.clone()))?;
        let store = FdStore::from_environment().context("cannot tell the service manager")?;
        let restored = match store {
            Some(store) => restore(&mut server, store, stored)?,
            None => Restored::default(),
        };
        let (address, port) = (device.info().address, device.info().port);
        let path = server.path().map(|path| path.display().to_string());
        if self.json {
            let sessions = restored.sessions;
            output::json_line(&json!({
                "address": address,
                "port": port,
                "socket": path,
                "machines": self.machine,
                "restored": sessions,
            }))?;
        } else {
            let at = path.as_deref().unwrap_or("the socket that was passed");
            println!("Card at {address}, UDP port {port}; programs attach at {at}.");
            if restored.sessions > 0 {
                println!("Sessions that another daemon has left: {}.", restored.sessions);
            }
            for path in &self.machine {
                println!("A virtual machine gets a device at {}.", path.display());
            }
            println!("Try: remora nic status        Stop: Ctrl-C");
        }
        server.run(&stop).context("the daemon cannot go on")?;
        drop(server);
        self.device.finish(&device);
        if !self.json {
            println!("Stopped.");
        }
        Ok(())
    }
}

/// What systemd has passed to this process.
#[derive(Default)]
struct Passed {
    /// The socket that it has made.
    listener: Option<OwnedFd>,
    /// What another daemon has stored there, with its names.
    stored: Vec<(String, OwnedFd)>,
}

/// Restores what another daemon has left, and tells the service manager that this one serves.
fn restore(
    server: &mut Server,
    store: FdStore,
    stored: Vec<(String, OwnedFd)>,
) -> Result<Restored> {
    let ready = FdStore::from_environment()?;
    let restored = server.restore(store, stored);
    if let Some(ready) = ready {
        ready.ready();
    }
    Ok(restored)
}

/// The descriptors that systemd has passed, if it has any for this process.
fn passed() -> Result<Passed> {
    let value = |name| env::var(name).unwrap_or_default();
    if value("LISTEN_PID").parse() != Ok(getpid().as_raw_nonzero().get()) {
        return Ok(Passed::default());
    }
    let names = value("LISTEN_FDNAMES");
    let mut names = names.split(':');
    let mut passed = Passed::default();
    let descriptors = take_passed(value("LISTEN_FDS").parse().unwrap_or(0))
        .context("fewer descriptors were passed than LISTEN_FDS says")?;
    for descriptor in descriptors {
        let name = names.next().unwrap_or_default();
        if is_stored(name) {
            passed.stored.push((name.into(), descriptor));
        } else {
            passed.listener.get_or_insert(descriptor);
        }
    }
    Ok(passed)
}
