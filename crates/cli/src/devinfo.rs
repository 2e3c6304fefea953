//! `remora devinfo`: what the device offers, in the manner of `ibv_devinfo`.

use std::io::ErrorKind;

use anyhow::{Context, Result};
use clap::Args;
use remora::nic::Config;
use remora::nic::qp::{MAX_RD_ATOMIC, Mtu};
use remora::nic::queue::MAX_SGE;
use remora::nic::queue::element::{MAX_INLINE, MAX_MESSAGE};
use remora::nic::wire::ip::gid;
use remora::{Device, SocketInfo};
use serde_json::{Value, json};

use crate::{DeviceArgs, output};

/// The greatest depth of a work queue, a power of two.
const MAX_QP_WR: usize = 1 << 20;

/// `remora devinfo`.
#[derive(Debug, Args)]
pub(crate) struct Devinfo {
    #[command(flatten)]
    device: DeviceArgs,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

impl Devinfo {
    pub(crate) fn run(self) -> Result<()> {
        let device = self.device.open()?;
        let socket = match device.socket_info() {
            Err(error) if error.kind() == ErrorKind::Unsupported => None,
            asked => Some(asked.context("cannot ask the device's socket")?),
        };
        let fields = describe(&device, socket);
        if self.json {
            return output::json_line(&Value::Object(
                fields.into_iter().map(|f| (f.name.to_owned(), f.value)).collect(),
            ));
        }
        for field in &fields {
            let indent = "    ".repeat(field.depth);
            let text = match &field.value {
                Value::String(text) => text.clone(),
                value => value.to_string(),
            };
            let note = field.note.as_ref().map_or(String::new(), |note| format!(" ({note})"));
            println!("{:<32}{text}{note}", format!("{indent}{}:", field.name));
        }
        self.device.finish(&device);
        Ok(())
    }
}

/// A line of the output.
struct Field {
    depth: usize,
    name: &'static str,
    value: Value,
    note: Option<String>,
}

/// What carries packets.
fn fabric(device: &Device, is_own: bool) -> &'static str {
    if !is_own {
        return "that of the daemon whose card this is (remora nic)";
    }
    match device.ring_peers() {
        Some(_) => "UDP, and shared memory to cards of this machine and user",
        None => "UDP",
    }
}

fn describe(device: &Device, socket: Option<SocketInfo>) -> Vec<Field> {
    let (info, limits) = (device.info(), device.limits());
    let field = |depth, name, value: Value| Field { depth, name, value, note: None };
    let noted = |depth, name, value: Value, note: String| Field {
        note: Some(note),
        ..field(depth, name, value)
    };
    let mut fields = vec![
        field(0, "hca_id", json!("remora0")),
        field(1, "transport", json!("RoCE v2 over UDP, in software")),
        noted(1, "fabric", json!(fabric(device, socket.is_some())), "REMORA_FABRIC".into()),
        field(1, "fw_ver", json!(env!("CARGO_PKG_VERSION"))),
        field(1, "node_guid", json!(guid(limits.cm.ca_guid))),
        field(1, "sys_image_guid", json!(guid(limits.cm.ca_guid))),
        field(1, "phys_port_cnt", json!(1)),
    ];
    fields.extend(
        limits_of(&limits)
            .map(|(name, value, note)| Field { note, ..field(1, name, json!(value)) }),
    );
    let mtu = |mtu: Mtu| format!("code {}", mtu.code());
    fields.extend([
        field(1, "port", json!(1)),
        field(2, "state", json!("PORT_ACTIVE")),
        noted(2, "max_mtu", json!(Mtu::B4096.bytes()), mtu(Mtu::B4096)),
        noted(2, "active_mtu", json!(info.mtu.bytes()), mtu(info.mtu)),
        field(2, "link_layer", json!("Ethernet")),
        field(2, "address", json!(info.address)),
        field(2, "udp_port", json!(info.port)),
        noted(2, "gid[0]", json!(gid(info.address)), "RoCE v2".to_owned()),
    ]);
    fields.extend(match socket {
        Some(socket) => socket_fields(&socket),
        None => vec![field(2, "socket", json!("the daemon’s, which does not tell of it"))],
    });
    fields.push(noted(
        2,
        "window_packets",
        json!(limits.window_packets),
        "unacknowledged, a queue pair".into(),
    ));
    fields
}

/// What the system has granted the card's socket.
fn socket_fields(socket: &SocketInfo) -> Vec<Field> {
    let granted = |is: bool| json!(if is { "yes" } else { "no" });
    let noted =
        |name, value: Value, note: String| Field { depth: 2, name, value, note: Some(note) };
    let bytes = |name, bytes: usize| noted(name, json!(bytes), output::bytes(bytes as u64));
    vec![
        noted("udp_segment", granted(socket.segmentation), "many packets sent a call".into()),
        noted("udp_gro", granted(socket.coalescing), "many packets received a call".into()),
        bytes("recv_buffer", socket.recv_buffer),
        bytes("send_buffer", socket.send_buffer),
    ]
}

/// Each limit: its name (as in `ibv_device_attr`, if it is there), its value, and its meaning.
fn limits_of(limits: &Config) -> impl Iterator<Item = (&'static str, usize, Option<String>)> {
    let dm = (limits.device_memory.end - limits.device_memory.start) as usize;
    let page = 1u64 << limits.page_shift;
    let reach = output::bytes(page.saturating_mul(limits.translation_entries as u64));
    let note = |text: &str| Some(text.to_owned());
    [
        ("max_qp", limits.max_qps, None),
        ("max_qp_wr", MAX_QP_WR, note("work requests a queue")),
        ("max_sge", MAX_SGE, note("entries a work request")),
        ("max_inline_data", MAX_INLINE, note("bytes")),
        ("max_msg_sz", MAX_MESSAGE as usize, note("bytes")),
        (
            "max_qp_rd_atom",
            usize::from(MAX_RD_ATOMIC),
            note("READs and atomics outstanding, each way"),
        ),
        ("max_cq", limits.max_cqs, None),
        ("max_cqe", limits.max_cqe, note("entries a completion queue")),
        ("max_srq", limits.max_srqs, None),
        ("max_pd", limits.max_pds, None),
        ("max_ah", limits.max_ahs, None),
        ("max_mr", limits.max_mrs, None),
        ("page_size", page as usize, Some(output::bytes(page))),
        (
            "page_table_entries",
            limits.translation_entries,
            Some(format!("{reach} registered at once")),
        ),
        ("max_dm_size", dm, Some(format!("{} on the card", output::bytes(dm as u64)))),
        ("max_outstanding", limits.max_outstanding, note("messages in flight, all queue pairs")),
        ("fetch_elements", limits.fetch_elements as usize, note("a turn of the scheduler")),
        ("burst_bytes", limits.burst_bytes as usize, note("a turn of the scheduler")),
        ("max_cm_listeners", limits.cm.max_listeners, None),
        ("max_cm_connections", limits.cm.max_connections, None),
    ]
    .into_iter()
}

/// A GUID as `ibv_devinfo` writes it: four groups of digits.
fn guid(bits: u64) -> String {
    let group = |at: u32| (bits >> (16 * at)) & 0xffff;
    format!("{:04x}:{:04x}:{:04x}:{:04x}", group(3), group(2), group(1), group(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_device() {
        assert_eq!(guid(0x0200_0000_7f00_0001), "0200:0000:7f00:0001");
        assert_eq!(gid("127.0.0.1".parse().unwrap()).to_string(), "::ffff:127.0.0.1");
    }
}
