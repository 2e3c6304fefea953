//! A card of this process, and its address in the forms that verbs use: GID, LID, interface.

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use remora::nic::qp::Mtu;
use remora::nic::wire::ip::gid;
use remora::{Device, raw};

use crate::abi::*;

/// The version of this library, shown where other devices show their firmware's.
pub(crate) const FIRMWARE: &str = env!("CARGO_PKG_VERSION");
/// Entries of the GID table. All of them hold the card's one GID: instructions for programs name
/// index 0, 1 or 3, depending on the hardware that they were written for.
pub(crate) const GID_TABLE_LEN: u32 = 4;
/// The port's capability mask.
pub(crate) const CAPABILITIES: u32 = IBV_PORT_CM_SUP | IBV_PORT_IP_BASED_GIDS;

/// How long the end of the process waits for a card. Other threads have it only briefly.
const AT_END: Duration = Duration::from_millis(100);

/// A card of this process.
#[derive(Debug)]
pub struct ListedCard {
    /// Its index in the list of devices.
    pub index: usize,
    /// Its device name: `remora0`, …
    pub name: String,
    /// The device of the Rust interface.
    pub device: Device,
    /// Its address, from which its GID follows.
    pub address: IpAddr,
    /// Its user has named the address; otherwise it is a free one of loopback.
    pub is_named: bool,
    /// The largest path MTU.
    pub mtu: Mtu,
    /// Its GUID; never zero.
    pub guid: u64,
    /// The network interface with the address; zero if there is none.
    pub ifindex: u32,
    /// That interface's name.
    pub ifname: String,
    /// The directory that stands for `/sys/class/infiniband/NAME`; empty if it could not be made.
    pub directory: String,
    /// The descriptor that stands for it in other processes; nothing if the system gave none.
    pub(crate) letter: Option<OwnedFd>,
    /// The card is one that another process has.
    pub(crate) is_attached: bool,
    /// When the end of the process first asked for the card.
    pub(crate) ends_since: OnceLock<Instant>,
}

/// The index of the first card that another process's device is used by: beyond those of the list.
const FIRST_GUEST: usize = 1 << 16;

impl ListedCard {
    /// The same card as another process uses it, to which `device` leads.
    pub(crate) fn guest(&self, device: Device) -> ListedCard {
        static NEXT: AtomicUsize = AtomicUsize::new(FIRST_GUEST);
        ListedCard {
            index: NEXT.fetch_add(1, Ordering::Relaxed),
            name: self.name.clone(),
            device,
            ifname: self.ifname.clone(),
            directory: self.directory.clone(),
            letter: None,
            ends_since: OnceLock::new(),
            ..*self
        }
    }

    /// Is it used beside another process, which gets its events? (So does a forked child with its
    /// parent's card.)
    pub(crate) fn is_guest(&self) -> bool {
        self.is_attached && self.device.is_guest()
    }

    /// Locks the card: no other thread drives or commands it meanwhile.
    pub fn lock(&self) -> raw::LockedCard<'_> {
        // SAFETY: rings lie in memory of this library that is freed only after the card has dropped
        // them. Regions are memory of the program, which by the contract of `ibv_reg_mr` keeps it
        // mapped until `ibv_dereg_mr`; no Rust reference to it is ever made.
        unsafe { self.device.card() }
    }

    /// As [`ListedCard::lock`], for a process that ends: the thread that has the card may be what
    /// ends the process, in a signal's handler. `None` if the card is not free within [`AT_END`]
    /// of the first such call.
    pub fn lock_at_end(&self) -> Option<raw::LockedCard<'_>> {
        let start = *self.ends_since.get_or_init(Instant::now);
        loop {
            // SAFETY: as in `lock`.
            let card = unsafe { self.device.try_card() };
            if card.is_some() || start.elapsed() >= AT_END {
                return card;
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// The port's local identifier (LID). Ethernet has none; but on loopback the low half of the
    /// address serves as one, so that programs that exchange nothing but LIDs find each other.
    pub fn lid(&self) -> u16 {
        match self.address {
            IpAddr::V4(v4) if v4.octets()[..2] == [127, 0] => {
                u16::from_be_bytes([v4.octets()[2], v4.octets()[3]])
            }
            _ => 0,
        }
    }

    /// The address that `lid` means, seen from this card.
    pub fn address_of_lid(&self, lid: u16) -> Option<IpAddr> {
        let [high, low] = lid.to_be_bytes();
        (self.address.is_loopback() && self.address.is_ipv4() && lid != 0)
            .then(|| IpAddr::from([127, 0, high, low]))
    }

    /// The card's GID.
    pub fn gid(&self) -> [u8; 16] {
        gid_of(self.address)
    }
}

/// The GID of an address.
pub fn gid_of(address: IpAddr) -> [u8; 16] {
    gid(address).octets()
}

/// The address of a GID.
pub fn address_of_gid(gid: [u8; 16]) -> IpAddr {
    IpAddr::from(gid).to_canonical()
}
