//! A host: a card, memory, and a driver between the card and the network.

use core::net::IpAddr;
use core::ops::{Index, IndexMut, RangeFull};
use core::time::Duration;
use std::collections::BTreeMap;

use remora_nic::{Event, Nic, Time};

use crate::memory::SimMemory;
use crate::packet::Wire;
use crate::stage::Stage;

/// A machine with a card and memory.
#[derive(Debug)]
pub struct Host {
    /// Its address.
    pub address: IpAddr,
    /// The card.
    pub nic: Nic,
    /// The memory.
    pub memory: SimMemory,
    /// Events of the card that the application has not taken.
    pub events: Vec<Event>,
    /// Datagrams that have arrived and that the card has not got yet.
    pub(crate) inbox: Vec<Wire>,
    /// The earliest moment at which the network wakes the card. [`Time::NEVER`]: it does not.
    pub(crate) timer: Time,
    is_touched: bool,
    /// The time of the card's hardware, and the packets that wait for it; `None`: it takes none.
    pub(crate) hardware: Option<Box<Stage>>,
}

impl Host {
    pub(crate) fn new(address: IpAddr, nic: Nic) -> Host {
        let (memory, events, inbox) = (SimMemory::new(), Vec::new(), Vec::new());
        Host {
            address,
            nic,
            memory,
            events,
            inbox,
            timer: Time::NEVER,
            is_touched: false,
            hardware: None,
        }
    }
}

/// How a host's driver behaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DriverOptions {
    /// The time for which arrivals are collected before the card gets them as one batch.
    pub receive_delay: Duration,
    /// The number of packets that the driver asks the card for at a time.
    pub transmit_batch: usize,
    /// There is no driver: the port takes packets from the card by itself, those of one turn when
    /// all before have left, and hands over each packet when it arrives. The other options do not
    /// apply. A driver in software takes all that the card has, which then waits in front of the
    /// port.
    pub hardware: bool,
}

impl DriverOptions {
    /// A card in hardware.
    pub const HARDWARE: DriverOptions =
        DriverOptions { receive_delay: Duration::ZERO, transmit_batch: 1, hardware: true };
}

impl Default for DriverOptions {
    fn default() -> DriverOptions {
        DriverOptions { receive_delay: Duration::ZERO, transmit_batch: 32, hardware: false }
    }
}

/// The hosts of a world. Code that gets a host to change *touches* it: the world then looks whether
/// its card has something to do. It looks at no other host.
#[derive(Debug, Default)]
pub struct Hosts {
    list: Vec<Host>,
    /// The number of the first, where the world is part of a larger one.
    first: usize,
    touched: Vec<u32>,
}

impl Hosts {
    /// No hosts yet; the first to come has this number.
    pub(crate) fn from(first: usize) -> Hosts {
        Hosts { first, ..Hosts::default() }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Are there none?
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The hosts, in their order.
    pub fn iter(&self) -> core::slice::Iter<'_, Host> {
        self.list.iter()
    }

    /// The hosts, to be changed.
    pub fn iter_mut(&mut self) -> core::slice::IterMut<'_, Host> {
        (self.first..self.first + self.list.len()).for_each(|i| self.touch(i));
        self.list.iter_mut()
    }

    pub(crate) fn push(&mut self, host: Host) -> usize {
        self.list.push(host);
        let index = self.first + self.list.len() - 1;
        self.touch(index);
        index
    }

    /// Notes that something has happened to a host.
    #[inline]
    pub(crate) fn touch(&mut self, index: usize) {
        let host = &mut self.list[index - self.first];
        if !core::mem::replace(&mut host.is_touched, true) {
            self.touched.push(index as u32);
        }
    }

    /// Takes the hosts that were touched since the last call, in their order, into `out`.
    #[inline]
    pub(crate) fn take_touched(&mut self, out: &mut Vec<u32>) {
        out.clear();
        core::mem::swap(out, &mut self.touched);
        out.sort_unstable();
        for index in out {
            self.list[*index as usize - self.first].is_touched = false;
        }
    }

    /// Has a host been touched?
    #[inline]
    pub(crate) fn has_touched(&self) -> bool {
        !self.touched.is_empty()
    }

    /// A host, to be changed without being touched.
    #[inline]
    pub(crate) fn quietly(&mut self, index: usize) -> &mut Host {
        &mut self.list[index - self.first]
    }
}

impl Index<usize> for Hosts {
    type Output = Host;
    #[inline]
    fn index(&self, index: usize) -> &Host {
        &self.list[index - self.first]
    }
}

impl IndexMut<usize> for Hosts {
    #[inline]
    fn index_mut(&mut self, index: usize) -> &mut Host {
        self.touch(index);
        &mut self.list[index - self.first]
    }
}

impl Index<RangeFull> for Hosts {
    type Output = [Host];
    fn index(&self, _: RangeFull) -> &[Host] {
        &self.list
    }
}

impl IndexMut<RangeFull> for Hosts {
    fn index_mut(&mut self, _: RangeFull) -> &mut [Host] {
        (self.first..self.first + self.list.len()).for_each(|i| self.touch(i));
        &mut self.list
    }
}

impl<'a> IntoIterator for &'a Hosts {
    type Item = &'a Host;
    type IntoIter = core::slice::Iter<'a, Host>;
    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<'a> IntoIterator for &'a mut Hosts {
    type Item = &'a mut Host;
    type IntoIter = core::slice::IterMut<'a, Host>;
    fn into_iter(self) -> Self::IntoIter {
        self.iter_mut()
    }
}

/// The addresses of all hosts of a network.
#[derive(Debug, Default)]
pub(crate) struct Addresses {
    list: Vec<IpAddr>,
    /// Those that [`guess`] does not lead to.
    others: BTreeMap<IpAddr, u32>,
}

impl Addresses {
    pub(crate) fn push(&mut self, address: IpAddr) {
        let index = self.list.len();
        self.list.push(address);
        if guess(address) != index {
            self.others.entry(address).or_insert(index as u32);
        }
    }

    /// The host that has this address.
    #[inline]
    pub(crate) fn find(&self, address: IpAddr) -> Option<u32> {
        let guess = guess(address);
        if self.list.get(guess) == Some(&address) {
            return Some(guess as u32);
        }
        self.others.get(&address).copied()
    }

    #[inline]
    pub(crate) fn of(&self, host: u32) -> IpAddr {
        self.list[host as usize]
    }
}

/// The host that has this address if host `i` has the `i+1`st of 10.0.0.0/8.
#[inline]
fn guess(address: IpAddr) -> usize {
    match address {
        IpAddr::V4(v4) => (v4.to_bits() & 0xFF_FFFF).wrapping_sub(1) as usize,
        IpAddr::V6(_) => usize::MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_found_whatever_they_are() {
        let mut addresses = Addresses::default();
        let list: Vec<IpAddr> = ["10.0.0.1", "10.1.0.7", "fd00::1", "10.0.0.4", "192.0.2.2"]
            .map(|a| a.parse().unwrap())
            .into();
        list.iter().for_each(|a| addresses.push(*a));
        for (i, address) in (0..).zip(&list) {
            assert_eq!((addresses.find(*address), addresses.of(i)), (Some(i), *address));
        }
        assert_eq!(addresses.find("10.0.0.2".parse().unwrap()), None);
    }
}
