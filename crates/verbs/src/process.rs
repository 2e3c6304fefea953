//! What this process has: its cards, and everything that handles point to.
//!
//! A card is opened when a program first asks which devices there are, and stays to the end of the
//! process. `REMORA_ADDR` says which: addresses or interfaces, separated by commas, or `auto` for a
//! free address of loopback, which is also what an empty or missing variable means.
//!
//! # fork
//! A child has no threads but one, and locks may be taken that nobody will give back. So the child
//! starts with nothing: the handler below does no more than set a pointer to null and count. What
//! the parent had stays as it was, unreachable; handles of the parent are foreign to the child. The
//! child opens a card of its own, at another address, when it first asks for devices.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::env;
use std::net::IpAddr;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use remora::nic::qp::Mtu;
use remora::socket::BindError;
use remora::{Device, DeviceOptions, OpenError, raw};

use crate::handles::Pools;
use crate::{log, sysfs};

/// The environment variable that says where the cards are.
pub const ADDR_VARIABLE: &str = "REMORA_ADDR";

/// What a process has.
#[derive(Default)]
pub struct Process {
    cards: OnceLock<Vec<Card>>,
    pub(crate) pools: Pools,
    shared: Mutex<HashMap<TypeId, Arc<dyn Any + Send + Sync>>>,
}

/// A card of this process.
#[derive(Debug)]
pub struct Card {
    /// Its place in the list of devices.
    pub index: usize,
    /// `remora0`, …
    pub name: String,
    /// The card itself.
    pub device: Device,
    /// Its address, from which its GID follows.
    pub address: IpAddr,
    /// The largest path MTU.
    pub mtu: Mtu,
    /// Never zero.
    pub guid: u64,
    /// The network interface with the address; zero if there is none.
    pub ifindex: u32,
    /// That interface's name.
    pub ifname: String,
    /// The directory that stands for `/sys/class/infiniband/NAME`; empty if it could not be made.
    pub directory: String,
}

impl Card {
    /// The card, locked: nobody else drives or commands it meanwhile.
    pub fn lock(&self) -> raw::Card<'_> {
        // SAFETY: rings lie in memory of this library that outlives them on the card. Regions are
        // memory of a program, which by the contract of `ibv_reg_mr` keeps it mapped until
        // `ibv_dereg_mr`; no Rust reference to it is ever made.
        unsafe { self.device.card() }
    }

    /// The port's local identifier. Ethernet has none; but on loopback the low half of the address
    /// does what a LID does, and programs that exchange LIDs only find each other.
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
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// The address of a GID.
pub fn address_of_gid(gid: [u8; 16]) -> IpAddr {
    IpAddr::from(gid).to_canonical()
}

impl std::fmt::Debug for Process {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Process").field("cards", &self.cards).finish_non_exhaustive()
    }
}

static CURRENT: AtomicPtr<Process> = AtomicPtr::new(ptr::null_mut());
/// How many forks lie between the process that loaded this library and this one.
static GENERATION: AtomicU32 = AtomicU32::new(0);
static AT_FORK: AtomicBool = AtomicBool::new(false);

/// Which process of a line of forks this is.
#[inline]
pub fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// This process.
pub fn current() -> &'static Process {
    // SAFETY: what the pointer was ever set to is never freed.
    if let Some(process) = unsafe { CURRENT.load(Ordering::Acquire).as_ref() } {
        return process;
    }
    if !AT_FORK.swap(true, Ordering::Relaxed) {
        // SAFETY: the handlers are functions without captures, and the library stays loaded: it is
        // linked with `-z nodelete`.
        unsafe {
            libc::pthread_atfork(None, None, Some(in_child));
            libc::atexit(at_exit);
        }
    }
    log::start();
    let made = Box::into_raw(Box::<Process>::default());
    let set = CURRENT.compare_exchange(ptr::null_mut(), made, Ordering::AcqRel, Ordering::Acquire);
    match set {
        // SAFETY: never freed, see above.
        Ok(_) => unsafe { &*made },
        Err(other) => {
            // SAFETY: nobody else has seen what was just made; the other is never freed.
            unsafe {
                drop(Box::from_raw(made));
                &*other
            }
        }
    }
}

/// In the child of a fork, where only what needs no lock and no memory is safe.
extern "C" fn in_child() {
    CURRENT.store(ptr::null_mut(), Ordering::Release);
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// At the end of the process, which does not drop its cards. Other threads may still run.
extern "C" fn at_exit() {
    // SAFETY: what the pointer was ever set to is never freed.
    let Some(process) = (unsafe { CURRENT.load(Ordering::Acquire).as_ref() }) else { return };
    for card in process.cards.get().into_iter().flatten() {
        // Somebody else's turn with the card is short.
        let done = (0..100).any(|_| {
            let done = card.device.finish();
            if !done {
                std::thread::sleep(Duration::from_millis(1));
            }
            done
        });
        if !done {
            tracing::warn!("the process ends while the card {} is busy", card.name);
        }
    }
    sysfs::remove(process);
}

impl Process {
    /// The cards, opened if this is the first call.
    pub fn cards(&self) -> &[Card] {
        self.cards.get_or_init(open_cards)
    }

    /// What another part of the library keeps for the whole process; made when first asked for.
    pub fn shared<T: Any + Default + Send + Sync>(&self) -> Arc<T> {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let any = shared.entry(TypeId::of::<T>()).or_insert_with(|| Arc::new(T::default()));
        // The entry's key says its type.
        any.clone().downcast().unwrap_or_default()
    }
}

/// Opens what the environment says. A card that cannot be opened is left out: a program sees a
/// machine without that device, and its user sees why.
fn open_cards() -> Vec<Card> {
    let wanted = env::var(ADDR_VARIABLE).unwrap_or_default();
    let mut cards: Vec<Card> = Vec::new();
    for bind in wanted.split(',').map(str::trim) {
        let options = match bind {
            "" | "auto" => DeviceOptions::new(),
            bind => DeviceOptions::new().bind(bind),
        };
        match options.open() {
            Ok(device) => cards.push(card(cards.len(), device)),
            Err(error) => {
                tracing::error!(address = bind, %error, "no RDMA device");
                if matches!(error, OpenError::Bind(BindError::InUse { .. })) {
                    tracing::error!(
                        "each process has a card of its own, so that two cannot have one address: \
                         leave {ADDR_VARIABLE} out (programs on one machine find each other), or \
                         let it say another address of this machine"
                    );
                }
            }
        }
    }
    cards
}

fn card(index: usize, device: Device) -> Card {
    let info = device.info();
    let (ifindex, ifname) = sysfs::interface_of(info.address);
    let mut card = Card {
        index,
        name: format!("remora{index}"),
        address: info.address,
        mtu: info.mtu,
        guid: device.limits().cm.ca_guid,
        device,
        ifindex,
        ifname,
        directory: String::new(),
    };
    match sysfs::publish(&card) {
        Ok(directory) => card.directory = directory,
        Err(error) => tracing::warn!(%error, "no directory for the device {}", card.name),
    }
    tracing::info!(name = card.name, address = %card.address, "device");
    card
}
