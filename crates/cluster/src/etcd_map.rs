//! A cluster's map in etcd.
//!
//! ```text
//! /remora/CLUSTER/slots       who has which slots, and where they are to go, as JSON
//! /remora/CLUSTER/GROUP/…     a group: see `etcd`
//! ```

use etcd_client::{Client, Compare, CompareOp, GetOptions, KeyValue, Txn, TxnOp};
use tokio::runtime::Runtime;

use crate::documents::{SIZE, SLOTS, note};
use crate::etcd::{EtcdGroup, client_of, runtime};
use crate::etcd_words::words_of;
use crate::map::{Atlas, MapService, SlotMap};

/// A cluster's map in etcd. It connects when it is first asked, and anew after a failure.
#[derive(Debug)]
pub struct EtcdMap {
    /// Its name is the cluster's.
    cluster: EtcdGroup,
    runtime: Runtime,
    client: Option<(ClientOf, String)>,
}

struct ClientOf(Client);

impl std::fmt::Debug for ClientOf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Client")
    }
}

impl EtcdMap {
    /// The map of the cluster that this group belongs to: its name is the cluster's, a slash, and
    /// its own; or the cluster's alone.
    ///
    /// # Errors
    /// The system has no descriptors.
    pub fn new(group: &EtcdGroup) -> std::io::Result<EtcdMap> {
        let name = group.name.split('/').next().unwrap_or_default().to_owned();
        let cluster = EtcdGroup { name, ..group.clone() };
        Ok(EtcdMap { cluster, runtime: runtime()?, client: None })
    }

    /// Does something with etcd's client and the cluster's prefix.
    fn with<T>(
        &mut self,
        act: impl AsyncFnOnce(&mut Client, &str) -> Result<T, etcd_client::Error>,
    ) -> Result<T, String> {
        let held = self.client.take();
        let done = self.runtime.block_on(async {
            let (mut client, prefix) = match held {
                Some((ClientOf(client), prefix)) => (client, prefix),
                None => client_of(&self.cluster).await?,
            };
            let done = act(&mut client, &prefix).await?;
            Ok((done, (ClientOf(client), prefix)))
        });
        let (done, held) = done.map_err(|error: etcd_client::Error| words_of(&error))?;
        self.client = Some(held);
        Ok(done)
    }

    /// Says how many members a group is to have, 1 to 15. Its primary sees to it, with the nodes
    /// that are there.
    ///
    /// # Errors
    /// etcd does not answer, in words.
    pub fn resize(&mut self, group: &str, size: u8) -> Result<(), String> {
        self.with(async |client, prefix| {
            client.put(format!("{prefix}{group}/{SIZE}"), size.to_string(), None).await.map(|_| ())
        })
    }
}

impl MapService for EtcdMap {
    fn look(&mut self) -> Result<Atlas, String> {
        let pairs = self.with(async |client, prefix| {
            let all = client.get(prefix, Some(GetOptions::new().with_prefix())).await?;
            let strip = |pair: &KeyValue| {
                let key = pair.key_str().ok()?.strip_prefix(prefix)?.to_owned();
                Some((key, pair.clone()))
            };
            Ok(all.kvs().iter().filter_map(strip).collect::<Vec<_>>())
        })?;
        let mut atlas = Atlas::default();
        for (key, pair) in pairs {
            note(&mut atlas, &key, pair.value(), pair.mod_revision())?;
        }
        Ok(atlas)
    }

    fn replace(&mut self, revision: i64, next: &SlotMap) -> Result<bool, String> {
        let value = serde_json::to_vec(next).expect("texts and numbers");
        self.with(async |client, prefix| {
            let key = format!("{prefix}{SLOTS}");
            let is_still = Compare::mod_revision(key.clone(), CompareOp::Equal, revision);
            let put = TxnOp::put(key, value, None);
            let done = client.txn(Txn::new().when([is_still]).and_then([put])).await?;
            Ok(done.succeeded())
        })
    }
}
