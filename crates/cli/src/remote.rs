//! Options of every command that connects to a node.

use std::net::IpAddr;

use anyhow::{Context, Result, ensure};
use clap::Args;
use remora::Device;
use remora::connection::token::Token;
use remora::interface::route_to;
use remora::nic::wire::ROCE_PORT;
use remora_command::node::address::{NodeAddress, RegionAddress};
use remora_command::node::client::{CONNECT_PATIENCE, RemoteRegion};

use crate::DeviceArgs;

/// How to reach a node.
#[derive(Clone, Debug, Args)]
pub(crate) struct RemoteArgs {
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
    /// The node's token, where it printed one
    #[arg(long, env = "REMORA_TOKEN", hide_env_values = true)]
    pub(crate) token: Option<Token>,
}

impl RemoteArgs {
    /// Opens a device that can reach `node`.
    pub(crate) fn open(&self, node: NodeAddress) -> Result<Device> {
        let device = reaching(&self.device, node.ip)?.open()?;
        // A card that several programs share may well have the node's own address.
        ensure!(
            device.is_attached() || device.info().address != node.ip,
            "no node runs at {node}: its address was free until this command's own card took it"
        );
        Ok(device)
    }

    /// Connects to a region.
    pub(crate) fn connect(&self, device: &Device, region: &RegionAddress) -> Result<RemoteRegion> {
        Ok(RemoteRegion::open(device, region, self.token, CONNECT_PATIENCE)?)
    }
}

/// The options, with an address from which `peer` is reached unless they name one.
///
/// # Errors
/// This machine has no such address.
pub(crate) fn reaching(device: &DeviceArgs, peer: IpAddr) -> Result<DeviceArgs> {
    let mut args = device.clone();
    if args.bind.is_none() && !is_served_by_default(peer) {
        let route = route_to((peer, ROCE_PORT).into()).and_then(|route| route.local_addr());
        let source = route.with_context(|| {
            format!("no address of this machine reaches {peer}; name one that does with --bind")
        })?;
        // An address of this machine's own is the peer's already: any other one reaches it.
        args.bind = Some(source.ip()).filter(|ip| *ip != peer).map(|ip| ip.to_string());
    }
    Ok(args)
}

/// Is the address one that nodes use by default, in 127.0.0.0/8?
fn is_served_by_default(ip: IpAddr) -> bool {
    ip.is_ipv4() && ip.is_loopback()
}
