//! The daemon.

use std::env;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use remora::daemon::{Policy, Server, ServerOptions};
use remora_cli::device::DeviceArgs;
use remora_cli::{output, stop};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use serde_json::json;

/// The first descriptor that systemd passes.
const PASSED: i32 = 3;

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
    /// Print a line of JSON when the daemon serves
    #[arg(long)]
    json: bool,
}

impl Serve {
    pub(super) fn run(self) -> Result<()> {
        let stop = stop::signals()?;
        let policy = match &self.policy {
            Some(path) => Policy::read(path)?,
            None => Policy::default(),
        };
        let device = self.device.options().embedded().open()?;
        let mut server = match passed_listener()? {
            Some(listener) => Server::on(device.clone(), listener, policy)?,
            None => {
                let options = ServerOptions { socket: self.socket.clone(), policy };
                Server::new(device.clone(), options)?
            }
        };
        let (address, port) = (device.info().address, device.info().port);
        let path = server.path().map(|path| path.display().to_string());
        if self.json {
            output::json_line(&json!({ "address": address, "port": port, "socket": path }))?;
        } else {
            let at = path.as_deref().unwrap_or("the socket that was passed");
            println!("Card at {address}, UDP port {port}; programs attach at {at}.");
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

/// The socket that systemd has made for this process, if it has.
fn passed_listener() -> Result<Option<OwnedFd>> {
    let number = |name| env::var(name).ok().and_then(|value| value.parse::<i32>().ok());
    let own = getpid();
    if number("LISTEN_PID") != Some(own.as_raw_nonzero().get()) {
        return Ok(None);
    }
    if number("LISTEN_FDS").is_none_or(|count| count < 1) {
        return Ok(None);
    }
    // A copy: the number alone says nothing of who owns the descriptor.
    let me = pidfd_open(own, PidfdFlags::empty()).context("cannot look at this process")?;
    let listener = pidfd_getfd(me.as_fd(), PASSED, PidfdGetfdFlags::empty());
    Ok(Some(listener.context("no socket was passed, although LISTEN_FDS says so")?))
}
