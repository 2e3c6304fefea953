//! A card that asks a node for connections and says no more.

use std::io;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::time::Duration;

use anyhow::{Context, Result};
use remora::connection::token::Token;
use remora::nic::Time;
use remora::nic::cm::mad::{CM_QKEY, CM_QPN};
use remora::nic::cm::message::{Message, Req};
use remora::nic::cm::service::PortSpace;
use remora::nic::cm::{Cm, CmConfig, ConnectRequest};
use remora::nic::wire::icrc::IcrcMaker;
use remora::nic::wire::ip::Flow;
use remora::nic::wire::{
    Bth, Deth, Dialect, Extensions, MAX_HEADER, Op, Packet, ROCE_PORT, Transport,
};
use remora_command::node::address::NodeAddress;
use remora_command::node::protocol::Request;

/// The op-code of an unreliable datagram in one packet.
const UD_SEND_ONLY: u8 = 0x64;

/// A plain socket at an address of its own that asks for the region `m`.
pub(crate) struct Hostile {
    socket: UdpSocket,
    flow: Flow,
    op: &'static Op,
    icrc: IcrcMaker,
    like: Req,
    asked: u32,
}

impl Hostile {
    /// One at this address of the machine, which shows the node this token and asks for the longest
    /// times.
    pub(crate) fn new(
        from: impl Into<Ipv4Addr>,
        node: NodeAddress,
        token: Option<Token>,
    ) -> Result<Hostile> {
        let ip = IpAddr::V4(from.into());
        let socket = UdpSocket::bind((ip, ROCE_PORT))
            .with_context(|| format!("cannot have UDP port {ROCE_PORT} at {ip}"))?;
        socket.set_read_timeout(Some(Duration::from_millis(20)))?;
        let data = Request { name: "m", token }.emit().context("cannot ask for the region `m`")?;
        let service = PortSpace::Tcp.service_id(node.port);
        let request = ConnectRequest {
            ack_timeout: 24,
            private_data: &data,
            ..ConnectRequest::new(node.ip, service, 1)
        };
        let mut cm = Cm::new(CmConfig::new(ip, 66), 66);
        cm.connect(Time::ZERO, &request)?;
        let mad = cm.poll_mad().context("the connection manager sends no request")?;
        let (_, message) =
            Message::from_mad(&mad.bytes[..]).context("its own request cannot be read")?;
        let Message::Req(mut like) = message else { anyhow::bail!("what it sends is no request") };
        like.local_response_timeout = 31;
        let op = Op::lookup(UD_SEND_ONLY, Dialect::STANDARD);
        let op = op
            .filter(|op| op.transport == Transport::Ud)
            .context("datagrams have no such op-code")?;
        let flow = Flow { src: ip, dst: node.ip, src_port: ROCE_PORT, dst_port: ROCE_PORT };
        Ok(Hostile { socket, flow, op, icrc: IcrcMaker::new(), like, asked: 0 })
    }

    /// How many requests it has sent.
    pub(crate) fn asked(&self) -> u32 {
        self.asked
    }

    /// Sends a request, each time from another queue pair.
    pub(crate) fn ask(&mut self) -> io::Result<()> {
        self.asked += 1;
        (self.like.local_comm_id, self.like.local_qpn) = (self.asked, self.asked);
        let mad = Message::Req(self.like.clone()).to_mad(self.asked.into());
        let bth = Bth { opcode: UD_SEND_ONLY, dest_qp: CM_QPN, ..Bth::ours() };
        let deth = Deth { qkey: CM_QKEY, src_qp: CM_QPN };
        let ext = Extensions { deth, ..Extensions::default() };
        let mut headers = [0; MAX_HEADER];
        let len = Packet::emit_headers(&bth, self.op, &ext, &mut headers);
        let mut packet = [&headers[..len], &mad].concat();
        let icrc = self.icrc.make(&self.flow, 0, &packet);
        packet.extend_from_slice(&icrc);
        self.socket.send_to(&packet, (self.flow.dst, ROCE_PORT)).map(|_| ())
    }

    /// Takes up to `count` answers; stops when none comes for a while.
    pub(crate) fn answers(&self, count: usize) -> usize {
        (0..count).take_while(|_| self.socket.recv(&mut [0; 512]).is_ok()).count()
    }
}
