//! The command `remora node`: serves files and memory to other processes, one-sided.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Result;
use clap::Args;
use remora::Device;
use remora::connection::token::Token;
use remora::kernel::Loader;
use serde_json::json;

use super::DEFAULT_PORT;
use super::address::NodeAddress;
use super::kernel_permit::Permit;
use super::server::Node;
use super::spec::RegionSpec;
use super::start::NodeOptions;
use crate::device::{DeviceArgs, token_of_node};
use crate::{output, random, stop};

/// `remora node`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  remora node --region data=measurements.csv --region scratch=64M,rw
  remora mem ls 127.0.0.1
  remora node --bind eth0 --region data=measurements.csv     prints the token that clients need

Regions are read-only unless they end in ,rw. A file is read and written in place, and never made
longer; if it shrinks while it is served, its region is withdrawn. A size (64M, 1G, 1500) means
memory; for a file with such a name write ./64M.

Every user of this machine can connect to a loopback address. Beyond loopback a client must show the
node's token. Kernels are loaded (`remora kernel load`) by the user who runs the node, on its
machine, or with the token given by --kernel-token. A token travels unencrypted, as all of RoCE
does: it keeps out mistakes, but not an attacker with access to your network.")]
pub struct Serve {
    #[command(flatten)]
    device: DeviceArgs,
    /// Port of RDMA CM's TCP port space (packets go to UDP 4791, as all RoCE v2 does)
    #[arg(long, default_value_t = DEFAULT_PORT, value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,
    /// A region to serve: a file, or memory of a size; may be given several times
    #[arg(long = "region", value_name = "NAME=FILE|SIZE[,rw]", required = true)]
    regions: Vec<RegionSpec>,
    /// The token that clients must show, 32 hexadecimal digits [default: none on loopback, a new
    /// one beyond it]
    #[arg(long, env = "REMORA_TOKEN", hide_env_values = true)]
    token: Option<Token>,
    /// A token that permits loading kernels from elsewhere, 32 hexadecimal digits. (The node's user
    /// on this machine needs none.)
    #[arg(long, env = "REMORA_KERNEL_TOKEN", hide_env_values = true)]
    kernel_token: Option<Token>,
    /// Print lines of JSON: one when the node serves, with --stats one at the end
    #[arg(long)]
    json: bool,
    /// Stop when standard input closes (for a parent process)
    #[arg(long, hide = true)]
    until_eof: bool,
}

impl Serve {
    /// Serves until told to stop; `loader` compiles the kernels of clients.
    ///
    /// # Errors
    /// The device cannot be opened, the node cannot start, or a thread or signal handler cannot be
    /// set up.
    pub fn run(self, loader: Loader) -> Result<()> {
        let stop = stop::on_signals()?;
        let device = self.device.open()?;
        let token = token_of_node(&device, self.token)?;
        let regions = self.regions.clone();
        // Kept until the node ends, because dropping it removes the file.
        let local = self.local_permit(&device)?;
        let local_token = local.as_ref().map(Permit::token);
        let permits = self.kernel_token.into_iter().chain(local_token).collect();
        let options =
            NodeOptions { port: self.port, token, regions, permits, loader: Some(loader) };
        let node = Node::start(&device, &options)?;
        if self.json {
            output::json_line(&json!({
                "node": node.address().to_string(),
                "address": node.address().ip,
                "port": node.address().port,
                "token": token.map(|token| token.to_string()),
                "regions": node.regions(),
            }))?;
        } else {
            announce(&node, token);
        }
        self.serve(&node, stop)?;
        if self.device.stats && self.json {
            output::json_line(&node.stats())?;
        } else {
            self.device.finish(&device);
        }
        Ok(())
    }

    /// Permits this user on this machine to load kernels.
    fn local_permit(&self, device: &Device) -> Result<Option<Permit>> {
        let address = NodeAddress { ip: device.info().address, port: self.port };
        match Permit::leave(&address, random::token()?) {
            Ok(permit) => Ok(Some(permit)),
            Err(error) => {
                tracing::warn!("kernels can be loaded with --kernel-token only: {error}");
                Ok(None)
            }
        }
    }

    fn serve(&self, node: &Node, stop: Arc<AtomicBool>) -> Result<()> {
        if self.until_eof {
            stop::on_end_of_input(stop.clone())?;
        }
        node.serve(&stop)?;
        if !self.json {
            println!("Stopped.");
        }
        Ok(())
    }
}

fn announce(node: &Node, token: Option<Token>) {
    let address = node.address();
    let mut table = output::table(["region", "bytes", "access", "from"]);
    for region in node.regions() {
        let access = if region.writable { "read, write" } else { "read" };
        let from = if region.file { "file" } else { "memory" };
        table.add_row([&region.name, &output::grouped(region.bytes), access, from]);
    }
    output::align_right(&mut table, [1]);
    println!("Memory node at {address}: RoCE v2 on UDP 4791, RDMA CM port {}.", address.port);
    println!("{table}");
    if let Some(token) = token {
        println!("Clients need this token: export REMORA_TOKEN={token}");
    }
    println!("Try: remora mem ls {address}        Stop: Ctrl-C");
}
