//! Calls by polling, one at a time.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use remora::kernel::{CallFailure, KernelClient};
use remora::nic::Access;
use remora::nic::queue::Sge;
use remora::{CompletionQueue, MemoryRegion};

use super::error::StoreError;
use super::operations::Caller;
use super::{Link, PARAMS_MAX};
use crate::tablespace::TablespaceId;
use crate::way::call::{ANSWER_LEN, Call, Operation};
use crate::way::connect::ConnectError;
use crate::way::patience::Patience;

/// Carries calls by polling.
#[derive(Debug)]
pub(super) struct Polled {
    kernels: KernelClient,
    /// Where calls are put that are too long for parameters.
    staging: Option<MemoryRegion>,
    /// The bytes of a call.
    bytes: Vec<u8>,
    pub(super) tablespace: TablespaceId,
    /// Where the queue pair's other requests complete.
    pub(super) sends: CompletionQueue,
    /// See [`PolledReads`](crate::way::one_sided::PolledReads).
    pub(super) is_owed: Arc<AtomicBool>,
}

impl Polled {
    pub(super) fn new(
        link: &Link,
        sends: CompletionQueue,
        receives: &CompletionQueue,
    ) -> Result<Polled, ConnectError> {
        let Link { domain, queue_pair, options, .. } = link;
        let answer_len = options.piece + ANSWER_LEN;
        let mut kernels = KernelClient::new(domain, queue_pair, receives, 1, answer_len)?;
        kernels.timeout = options.timeout;
        let tablespace = TablespaceId(options.tablespace);
        let (staging, bytes, is_owed) = (None, Vec::new(), Arc::default());
        Ok(Polled { kernels, staging, bytes, tablespace, sends, is_owed })
    }

    pub(super) fn set_timeout(&mut self, timeout: Duration) {
        self.kernels.timeout = timeout;
    }

    /// Waits until the call before has ended, if that took too long: the card may still read its
    /// bytes.
    fn wait_for_room(&mut self) -> Result<(), CallFailure> {
        let mut patience = Patience::new(self.kernels.timeout);
        while !self.kernels.has_room()? {
            if patience.is_over() {
                return Err(CallFailure::Timeout(self.kernels.timeout));
            }
        }
        Ok(())
    }

    /// Puts the call's bytes into registered memory.
    fn stage(&mut self) -> Result<Sge, StoreError> {
        let len = self.bytes.len();
        let region = match &self.staging {
            Some(region) if region.len() >= len as u64 => region,
            _ => {
                let domain = self.kernels.region().domain().clone();
                let made = domain.alloc(len.next_power_of_two(), Access::LOCAL_WRITE)?;
                self.staging.insert(made)
            }
        };
        region.write_at(0, &self.bytes).map_err(|error| StoreError::Call(error.into()))?;
        Ok(region.sge(0, len as u32))
    }
}

impl Caller for Polled {
    async fn call(
        &mut self,
        operation: Operation,
        call: &Call<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), StoreError> {
        self.wait_for_room()?;
        self.bytes.clear();
        Call { tablespace: self.tablespace.0, ..*call }.write(&mut self.bytes)?;
        if self.bytes.len() <= PARAMS_MAX {
            self.kernels.call(operation.opcode(), &self.bytes, out)?;
        } else {
            let payload = self.stage()?;
            self.kernels.call_with(operation.opcode(), &[], payload, out)?;
        }
        Ok(())
    }

    fn tablespace(&self) -> TablespaceId {
        self.tablespace
    }
}
