//! A client over the card, which reads in each way in turn, whatever becomes of the nodes.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use remora::Device;
use remora_store::client::{StoreClient, StoreError};
use remora_store::way::connect::ClientOptions;

use crate::history::card::{Get, ask};
use crate::history::course::Client;
use crate::history::{Op, Ret};
use crate::support::{PATIENCE, until};

/// How long a client waits for an answer. A change whose end did not come by then stays open.
const ANSWER: Duration = Duration::from_millis(1500);
const WAYS: [Get; 3] = [StoreClient::get, StoreClient::get_one_sided, StoreClient::get_by_chain];

pub(crate) struct Card {
    client: StoreClient,
    turn: usize,
}

impl Card {
    /// A client that one of these nodes has let in.
    pub(crate) fn new(device: &Device, nodes: &[SocketAddr]) -> Card {
        let options = ClientOptions { timeout: ANSWER, ..ClientOptions::default() };
        let (mut client, mut tried) = (None, 0);
        until("a node lets a client over the card in", || {
            client = StoreClient::connect(device, nodes[tried % nodes.len()], &options).ok();
            tried += 1;
            client.is_some()
        });
        Card { client: client.unwrap(), turn: 0 }
    }

    /// How many values READs have led to.
    pub(crate) fn read_one_sided(&self) -> u64 {
        let counters = self.client.one_sided_counters();
        counters.warm + counters.cold
    }
}

impl Client for Card {
    fn carry_out(&mut self, key: &str, op: Op) -> Option<Ret> {
        self.turn += 1;
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            match ask(&mut self.client, WAYS[self.turn % WAYS.len()], key.as_bytes(), op) {
                Ok(ret) => return Some(ret),
                // Nobody has carried it out.
                Err(StoreError::NoPrimary { .. }) => {}
                Err(_) => return None,
            }
        }
        panic!("nobody takes {op:?} of {key}");
    }
}
