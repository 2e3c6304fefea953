//! `remora perf serve`: the other end of a measurement.

use std::io::Write;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use remora::{Device, IncomingConnection};

use super::plan::{Mode, Plan, Verb};
use super::session::Session;
use super::{bandwidth, latency, verify};
use crate::DeviceArgs;
use crate::child;
use crate::failure::told;

/// The port, in RDMA CM's TCP port space, on which `remora perf serve` listens by default:
/// perftest's.
pub(super) const DEFAULT_PORT: u16 = 18_515;
/// The beginning of the first line; an address and a port follow.
pub(super) const LISTENING: &str = "remora perf: listening on";

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
        println!("{LISTENING} {}:{}", device.info().address, listener.port());
        std::io::stdout().flush()?;
        if self.child {
            child::end_with_stdin()?;
        }
        loop {
            let Ok(incoming) = listener.accept().wait(Duration::from_secs(3600)) else { continue };
            let client = incoming.peer();
            match self.serve(&device, incoming) {
                // The parent process reads only the first line.
                Ok(plan) if !self.child => {
                    writeln!(std::io::stdout(), "{client}: {}: done", plan.name()).ok();
                }
                Ok(_) => {}
                Err(error) => eprintln!("remora perf: {client}: {}", told(&error)),
            }
            self.device.finish(&device);
        }
    }

    fn serve(&self, device: &Device, incoming: IncomingConnection) -> Result<Plan> {
        let plan = match Plan::decode(incoming.private_data()) {
            Ok(plan) => plan,
            Err(error) => {
                incoming.reject(&told(&error));
                return Err(error);
            }
        };
        let mut session = Session::accept(device, plan, incoming)?;
        let received = match (plan.mode, plan.verb) {
            (Mode::Lat, Verb::Write | Verb::Send) => latency::answer(&mut session)?,
            _ => bandwidth::serve(&mut session)?,
        };
        verify::server(&mut session, received)?;
        // The client disconnects when it has the verdict.
        session.connection.wait_for_end(Duration::from_secs(5));
        Ok(plan)
    }
}
