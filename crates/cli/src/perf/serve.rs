//! `remora perf serve`: the other end of a measurement.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use remora::{ConnectFailure, Device, IncomingConnection};

use super::plan::{Mode, Plan, Verb};
use super::session::Session;
use super::{bandwidth, latency, verify};
use crate::DeviceArgs;
use crate::child;
use crate::failure::told;
use crate::stop;

/// The port, in RDMA CM's TCP port space, on which `remora perf serve` listens by default:
/// perftest's.
pub(super) const DEFAULT_PORT: u16 = 18_515;
/// The beginning of the first line; an address and a port follow.
pub(super) const LISTENING: &str = "remora perf: listening on";

/// How often is looked whether to end.
const LOOK: Duration = Duration::from_millis(50);

/// Serves tests, one after the other, until it is stopped.
#[derive(Debug, Args)]
pub(super) struct Serve {
    /// Port of RDMA CM's TCP port space
    #[arg(long, short, default_value_t = DEFAULT_PORT)]
    port: u16,
    /// Pin the process to the N-th core that it may use, counted from 0
    #[arg(long, value_name = "N")]
    pin: Option<usize>,
    /// End when standard input closes, and print nothing but the first line
    #[arg(long, hide = true)]
    child: bool,
    #[command(flatten)]
    device: DeviceArgs,
}

impl Serve {
    pub(super) fn run(&self) -> Result<()> {
        if let Some(which) = self.pin {
            child::pin(which)?;
        }
        let device = self.device.open()?;
        let listener = device
            .listen(self.port)
            .with_context(|| format!("cannot listen on port {}", self.port))?;
        let at = SocketAddr::new(device.info().address, listener.port());
        println!("{LISTENING} {at}");
        std::io::stdout().flush()?;
        let stop = Arc::new(AtomicBool::new(false));
        if self.child {
            stop::on_end_of_input(stop.clone())?;
        }
        while !stop.load(Ordering::Relaxed) {
            let incoming = match listener.accept().wait(LOOK) {
                Ok(incoming) => incoming,
                Err(ConnectFailure::Timeout(_)) => continue,
                Err(gone) => return Err(gone).context("no client can come any more"),
            };
            let client = incoming.peer();
            match serve(&device, incoming, &stop) {
                // The parent process reads only the first line.
                Ok(plan) if !self.child => {
                    writeln!(std::io::stdout(), "{client}: {}: done", plan.name()).ok();
                }
                Ok(_) => {}
                Err(error) => eprintln!("remora perf: {client}: {}", told(&error)),
            }
            self.device.finish(&device);
        }
        Ok(())
    }
}

/// Serves a client, unless `stop` is set before it says that it is done.
fn serve(device: &Device, incoming: IncomingConnection, stop: &Arc<AtomicBool>) -> Result<Plan> {
    let plan = match Plan::decode(incoming.private_data()) {
        Ok(plan) => plan,
        Err(error) => {
            incoming.reject(&told(&error));
            return Err(error);
        }
    };
    let mut session = Session::accept(device, plan, incoming)?;
    session.stop = stop.clone();
    let received = match (plan.mode, plan.verb) {
        (Mode::Lat, Verb::Write | Verb::Send) => latency::answer(&mut session)?,
        _ => bandwidth::serve(&mut session)?,
    };
    verify::server(&mut session, received)?;
    // The client disconnects when it has the verdict.
    session.connection.wait_for_end(Duration::from_secs(5));
    Ok(plan)
}
