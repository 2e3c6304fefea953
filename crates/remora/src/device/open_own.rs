//! Opens a card of the process' own: its socket, its settings, its memory and its fabric.
//!
//! Which address it takes where none is asked for is decided in `socket/bind.rs`.

use std::env;
use std::fs::File;
use std::io::BufWriter;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use remora_nic::Nic;
use remora_nic::qp::Mtu;

use super::{Device, DeviceInfo, DeviceOptions, OpenError, PCAP_VARIABLE, Parts, random};
use crate::dialect::{self, DialectChoice};
use crate::driver::Own;
use crate::either::Driver;
use crate::event::Event;
use crate::fabric::{Fabric, FabricChoice};
use crate::impair::source::Wish;
use crate::interface::{self, Interface};
use crate::kernel::{Executor, ExecutorLimits};
use crate::memory::{Buffer, HostMemory};
use crate::news::News;
use crate::own::PAGE_SHIFT;
use crate::own_memory::OwnMemory;
use crate::pcap::{Capture, Recorder};
use crate::service_levels;
use crate::socket::{self, Socket};
use crate::wakes::Wakes;

/// The shortest wait for an acknowledge. A peer's process may be without a processor for
/// milliseconds. Programs that ask for less (one library's default is 65 µs) assume hardware.
const MIN_ACK_TIMEOUT: Duration = Duration::from_millis(10);

/// The shortest wait for news until the last packet of a lossy connection is sent again.
const PROBE_FLOOR: Duration = Duration::from_millis(1);

/// What a message takes on a busy machine, to its peer and back. Thousands of queue pairs that send
/// at once wait for each other's packets, which must not look like a loss.
const MESSAGE_TIME: Duration = Duration::from_micros(10);

/// Bytes of the card's own memory.
const DEVICE_MEMORY: usize = 1 << 20;

impl DeviceOptions {
    /// Opens a card in this process. What the options leave open, the environment says.
    pub(super) fn open_own(self) -> Result<Device, OpenError> {
        let choice = self.fabric.map_or_else(FabricChoice::from_environment, Ok)?;
        let spoken = self.dialect.map_or_else(DialectChoice::from_environment, Ok)?;
        let (socket, link) = self.bound_socket()?;
        let mtu = self.mtu.map_or(link, |mtu| mtu.min(link));
        let capture = self.wanted_capture(&socket)?;
        let own_memory = self.card_memory()?;
        let mut config = self.card_config(&socket, mtu)?;
        config.device_memory = own_memory.range();
        config.cm.offers = spoken.offers();
        let (neighbours, paths) = (config.neighbours.clone(), config.paths);
        let wish = match self.impairments {
            Some(impairments) => Wish { impairments, watch: None },
            None => Wish::from_environment()?,
        };
        let (address, port, is_named) = (socket.addr(), socket.port(), self.bind.is_some());
        let info = DeviceInfo { address, port, mtu, is_named };
        // SAFETY: the card passes only addresses of its own memory, of rings and of registered
        // regions. The first lives in `Shared` beside the driver; rings and regions are `Buffer`s
        // that their owners keep until they are destroyed on the card, or ranges for which the
        // caller of `ProtectionDomain::register_raw` has promised the same.
        let memory = unsafe { HostMemory::new() };
        let mut nic = Nic::new(config, random()?);
        nic.set_kernels(Box::new(Executor::new(ExecutorLimits::default())));
        let wake = Arc::new(Event::new()?);
        let news = News::new(Arc::new(Event::new()?), Arc::new(Wakes::new(wake.clone())));
        let fabric = match choice {
            FabricChoice::Auto => {
                // Damage is seen by the ICRC.
                let sums = capture.is_some() || !wish.is_nothing();
                Fabric::with_rings(socket, neighbours.clone(), sums)
            }
            FabricChoice::Udp => Fabric::udp(socket),
        };
        let recorder = Recorder::new(capture);
        let mut own = Own::new(nic, memory, fabric.beside(neighbours), recorder, news);
        own.dialect = spoken;
        own.fabric.spread(paths);
        own.choose_offers();
        own.wish_impairments(wish, u64::from_ne_bytes(random()?));
        let socket = own.fabric.udp.as_fd().try_clone_to_owned()?;
        let clock = own.clock;
        let parts = Parts { driver: Driver::Own(own), clock, wake, socket, info };
        Device::start(parts, Some(own_memory), self.real_time)
    }

    /// The card's socket, and the largest MTU of its interface.
    fn bound_socket(&self) -> Result<(Socket, Mtu), OpenError> {
        let tos = remora_nic::Config::default().ecn as u8;
        // Nothing on the loopback interface marks packets.
        let with = |marks| socket::Config { tos, marks, ..socket::Config::default() };
        let Some(wanted) = &self.bind else {
            return Ok((Socket::bind_loopback(with(false))?, Mtu::B4096));
        };
        let interface = Interface::find(wanted)?;
        let socket = interface.bind(with(!interface.addr.is_loopback()))?;
        Ok((socket, interface.path_mtu()))
    }

    /// The file that packets are captured in, if the options or the environment want one.
    fn wanted_capture(
        &self,
        socket: &Socket,
    ) -> Result<Option<Capture<BufWriter<File>>>, OpenError> {
        let name = socket.addr().to_string();
        if let Some(path) = &self.capture {
            return Capture::create(path, &name)
                .map(Some)
                .map_err(|source| OpenError::Capture { path: path.clone(), source });
        }
        capture_from_environment()
            .map(|path| Capture::create_beside(&path, &name))
            .transpose()
            .map_err(|(path, source)| OpenError::Capture { path, source })
    }

    /// The card's own memory: the given piece, or new memory.
    fn card_memory(&self) -> Result<OwnMemory, OpenError> {
        let bytes = match &self.device_memory {
            Some(piece) => piece.map()?,
            None => Buffer::new(DEVICE_MEMORY)?,
        };
        Ok(OwnMemory { bytes, piece: self.device_memory.clone() })
    }

    /// The card's settings, but for its memory and its dialect.
    fn card_config(&self, socket: &Socket, mtu: Mtu) -> Result<remora_nic::Config, OpenError> {
        let mut config = remora_nic::Config::new(socket.addr());
        config.neighbours = interface::addresses().unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot list this machine's addresses: another process may \
                pretend to be the card at one of them");
            Vec::new()
        });
        config.page_shift = PAGE_SHIFT;
        // A region takes one entry, or two if it lies on both sides of a multiple of that.
        config.translation_entries = 2 * config.max_mrs;
        config.min_ack_timeout = MIN_ACK_TIMEOUT;
        config.message_time = MESSAGE_TIME;
        config.probe_floor = PROBE_FLOOR;
        config.paths = self.paths.map_or_else(dialect::paths_from_environment, Ok)?;
        config.congestion =
            self.congestion.map_or_else(dialect::congestion_from_environment, Ok)?;
        config.service_levels =
            self.service_levels.map_or_else(service_levels::from_environment, Ok)?;
        config.turn_order =
            self.turn_order.map_or_else(service_levels::order_from_environment, Ok)?;
        config.window_packets = self.window.unwrap_or_else(|| window_for(socket, mtu));
        config.set_guid(u64::from_ne_bytes(random()?));
        Ok(config)
    }
}

/// The window in packets: a quarter of the socket's buffer, so that one queue pair alone does not
/// overflow the peer's, if that is as large as ours. The kernel counts its bookkeeping too, which
/// is about as much again for small packets.
fn window_for(socket: &Socket, mtu: Mtu) -> u16 {
    let buffer = socket.recv_buffer().unwrap_or(212_992);
    let packets = buffer / 4 / (mtu.bytes() as usize + 256);
    packets.clamp(16, 256) as u16
}

fn capture_from_environment() -> Option<PathBuf> {
    let name = env::var_os(PCAP_VARIABLE).filter(|name| !name.is_empty())?;
    // A path of other bytes is taken as it is.
    let named = name.to_str().map(|name| name.replace("%p", &std::process::id().to_string()));
    Some(named.map_or_else(|| name.into(), PathBuf::from))
}
