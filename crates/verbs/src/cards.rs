//! The cards of this process: opened when the program first asks for devices, finished at exit.

use std::sync::OnceLock;

use remora::environment::{self, ADDR_VARIABLE};
use remora::socket::BindError;
use remora::{Device, DeviceOptions, OpenError};

use crate::card::ListedCard;
use crate::process::{self, Process};
use crate::{farewell, sysfs};

impl Process {
    /// The cards, opened if this is the first call.
    pub fn cards(&self) -> &[ListedCard] {
        self.cards.get_or_init(|| {
            farewell::at_exit(finish);
            open_cards()
        })
    }
}

/// Runs at the end of the process, which does not drop its cards. Other threads may still run.
fn finish() {
    let Some(process) = process::existing() else { return };
    sysfs::remove(process);
    for card in process.cards.get().into_iter().flatten() {
        match card.lock_at_end() {
            Some(mut locked) => locked.finish(),
            None => tracing::warn!("the process ends while the card {} is busy", card.name),
        }
    }
}

/// Opens the cards that the environment names. A card that cannot be opened is left out: the
/// program sees a machine without that device, and the log tells its user why.
fn open_cards() -> Vec<ListedCard> {
    let wanted = environment::text(ADDR_VARIABLE);
    let mut cards: Vec<ListedCard> = Vec::new();
    for bind in wanted.split(',').map(str::trim) {
        let options = match bind {
            "" | "auto" => DeviceOptions::new(),
            named => DeviceOptions::new().bind(named),
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

fn card(index: usize, device: Device) -> ListedCard {
    let info = device.info();
    let (ifindex, ifname) = sysfs::interface_of(info.address);
    let mut card = ListedCard {
        index,
        name: format!("remora{index}"),
        address: info.address,
        is_named: info.is_named,
        mtu: info.mtu,
        guid: device.limits().cm.ca_guid,
        letter: device.letter().inspect_err(|error| tracing::warn!(%error, "no letter")).ok(),
        is_attached: device.is_attached(),
        device,
        ifindex,
        ifname,
        directory: String::new(),
        ends_since: OnceLock::new(),
    };
    match sysfs::publish(&card) {
        Ok(directory) => card.directory = directory,
        Err(error) => tracing::warn!(%error, "no directory for the device {}", card.name),
    }
    tracing::info!(name = card.name, address = %card.address, "device");
    card
}
