//! Protection domains, and the memory registered in them.

use std::fmt;
use std::fs::File;
use std::net::IpAddr;
use std::sync::{Arc, Weak};

use remora_nic::queue::{RemoteAddress, Sge};
use remora_nic::{Access, CreateError, Key, Path, Pd, RegMrError};
use thiserror::Error;

use crate::attach::AdoptedRegion;
use crate::commands::{Bytes, Commands, Place};
use crate::either::Driver;
use crate::live::Live;
use crate::memory::{AllocError, Buffer, BufferError, FileError};
use crate::message::Object;

/// A protection domain: its queue pairs and regions work with each other, and with no others.
///
/// ```
/// use remora::prelude::*;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let domain = Device::open()?.alloc_pd()?;
/// let memory = domain.alloc(4096, Access::LOCAL_WRITE | Access::REMOTE_READ)?;
/// let qp = domain.create_qp(&QueuePairOptions::new())?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct ProtectionDomain {
    inner: Arc<PdInner>,
}

/// A handle that does not keep its domain.
#[derive(Debug)]
pub(crate) struct WeakDomain(Weak<PdInner>);

impl WeakDomain {
    /// The domain, if there still is a handle of it.
    pub(crate) fn upgrade(&self) -> Option<ProtectionDomain> {
        self.0.upgrade().map(|inner| ProtectionDomain { inner })
    }

    /// Is there a handle?
    pub(crate) fn is_kept(&self) -> bool {
        self.0.strong_count() > 0
    }
}

#[derive(Debug)]
struct PdInner {
    live: Arc<Live>,
    pd: Pd,
    /// It is of a session that was taken over, and stays there.
    stays: bool,
}

impl Drop for PdInner {
    fn drop(&mut self) {
        if self.stays {
            return;
        }
        if let Err(error) = self.live.lock().dealloc_pd(self.pd) {
            tracing::error!(%error, "a protection domain was dropped while in use");
        }
    }
}

/// Why memory was not registered.
#[derive(Debug, Error)]
pub enum RegisterError {
    /// The card refuses.
    #[error(transparent)]
    Card(#[from] RegMrError),
    /// There is no memory for the buffer.
    #[error(transparent)]
    Alloc(#[from] AllocError),
    /// The file cannot be served.
    #[error(transparent)]
    Files(#[from] FileError),
    /// The file's length cannot be read.
    #[error("cannot read the length of the file to serve: {0}")]
    Length(std::io::Error),
    /// The queue has no ring.
    #[error("the queue has no ring to register: it has no slots, or receives from a shared queue")]
    NoRing,
    /// The file is empty.
    #[error("the file to serve is empty: there is nothing to read or write in it")]
    EmptyFile,
    /// The region lies in a file, or in memory of a card, that another device has.
    #[error(
        "the region is in a file or in card memory of another device: register the file with this \
         one, too"
    )]
    OtherDevice,
    /// The card has too little memory of its own left.
    #[error("cannot allocate device memory: {0}")]
    DeviceMemory(CreateError),
}

impl ProtectionDomain {
    pub(crate) fn new(live: Arc<Live>) -> Result<ProtectionDomain, CreateError> {
        let pd = live.lock().alloc_pd()?;
        Ok(ProtectionDomain { inner: Arc::new(PdInner { live, pd, stays: false }) })
    }

    /// A domain that another process has made in the same session.
    pub(crate) fn adopt(live: Arc<Live>, pd: Pd) -> ProtectionDomain {
        ProtectionDomain { inner: Arc::new(PdInner { live, pd, stays: true }) }
    }

    /// A handle that does not keep the domain.
    pub(crate) fn downgrade(&self) -> WeakDomain {
        WeakDomain(Arc::downgrade(&self.inner))
    }

    /// Makes a zeroed buffer of `len` bytes and registers it. (In a virtual machine that uses its
    /// host's card, it is card memory.)
    ///
    /// # Errors
    /// `len` is zero, memory is short, or the card refuses.
    pub fn alloc(&self, len: usize, access: Access) -> Result<MemoryRegion, RegisterError> {
        let of_card = match &mut *self.inner.live.lock() {
            Driver::Attached(attached) => attached.card_buffer(len),
            Driver::Own(_) => None,
        };
        match of_card {
            Some(buffer) => self.add_buffer(buffer.map_err(RegisterError::DeviceMemory)?, access),
            None => self.register(Buffer::with_huge_pages(len)?, access),
        }
    }

    /// Registers a buffer. Peers and work requests use the buffer's addresses.
    ///
    /// # Errors
    /// The card refuses: see [`RegMrError`].
    pub fn register(
        &self,
        mut buffer: Buffer,
        access: Access,
    ) -> Result<MemoryRegion, RegisterError> {
        if let Driver::Attached(attached) = &mut *self.inner.live.lock() {
            attached.share(&mut buffer);
        }
        self.add_buffer(buffer, access)
    }

    /// Registers a buffer that is within the card's reach.
    fn add_buffer(&self, buffer: Buffer, access: Access) -> Result<MemoryRegion, RegisterError> {
        let (addr, len) = (buffer.addr(), buffer.len() as u64);
        let registered = self.add(at(addr, len), access, Backing::Buffer(buffer));
        if let (Err(_), Driver::Attached(attached)) = (&registered, &mut *self.inner.live.lock()) {
            attached.end_loan(addr);
        }
        registered
    }

    /// Registers memory that the caller owns.
    ///
    /// # Errors
    /// The card refuses: see [`RegMrError`].
    ///
    /// # Safety
    /// Until the region is dropped, the range must stay mapped, must stay writable if `access`
    /// allows any writing, and must be reached by raw pointers and atomics only: the card and its
    /// peers read and write it at any time.
    pub unsafe fn register_raw(
        &self,
        addr: u64,
        len: u64,
        access: Access,
    ) -> Result<MemoryRegion, RegisterError> {
        self.add(at(addr, len), access, Backing::Caller)
    }

    /// Registers a file, from its beginning to its present end. Peers and work requests use
    /// addresses from 0 on. Each access reads or writes the file itself. If the file has shrunk, an
    /// access to the missing part fails, and the process goes on.
    ///
    /// # Errors
    /// The file is empty, or the card refuses.
    pub fn register_file(&self, file: File, access: Access) -> Result<MemoryRegion, RegisterError> {
        let len = file.metadata().map_err(RegisterError::Length)?.len();
        if len == 0 {
            return Err(RegisterError::EmptyFile);
        }
        let place = self.inner.live.lock().add_file(file)?;
        self.add(Bytes { place, iova: 0, len }, access, Backing::File).inspect_err(|_| {
            self.inner.live.lock().remove_file(place);
        })
    }

    /// Registers `len` bytes of the card's own memory.
    ///
    /// # Errors
    /// The card has less memory of its own left, or refuses.
    pub fn alloc_device_memory(
        &self,
        len: u64,
        access: Access,
    ) -> Result<MemoryRegion, RegisterError> {
        let taken = self.inner.live.lock().alloc_dm(len);
        let addr = taken.map_err(RegisterError::DeviceMemory)?;
        let bytes = Bytes { place: Place::Device(addr), iova: addr, len };
        self.add(bytes, access, Backing::Device(addr))
    }

    /// Registers the first `len` bytes of a queue's ring.
    pub(crate) fn register_ring(
        &self,
        ring: Box<dyn RingMemory>,
        len: u64,
        access: Access,
    ) -> Result<MemoryRegion, RegisterError> {
        let addr = ring.buffer().ok_or(RegisterError::NoRing)?.addr();
        self.add(at(addr, len), access, Backing::Ring(ring))
    }

    fn add(
        &self,
        bytes: Bytes,
        access: Access,
        backing: Backing,
    ) -> Result<MemoryRegion, RegisterError> {
        let mut driver = self.inner.live.lock();
        let key = match driver.reg_mr(self.inner.pd, bytes, access) {
            Ok(key) => key,
            Err(refused) => {
                if let Backing::Device(addr) = backing {
                    driver.free_dm(addr).ok();
                }
                return Err(refused.into());
            }
        };
        drop(driver);
        let inner = MrInner { pd: self.clone(), key, bytes, backing };
        Ok(MemoryRegion { inner: Arc::new(inner) })
    }

    /// Makes an address handle for datagrams to `address`.
    ///
    /// # Errors
    /// The card has no more address handles.
    pub fn create_ah(&self, address: IpAddr) -> Result<AddressHandle, CreateError> {
        let path = Path::new(address, 0);
        let handle = self.inner.live.lock().create_ah(self.inner.pd, path)?;
        Ok(AddressHandle { inner: Arc::new(AhInner { pd: self.clone(), handle }) })
    }

    pub(crate) fn live(&self) -> &Arc<Live> {
        &self.inner.live
    }

    pub(crate) fn pd(&self) -> Pd {
        self.inner.pd
    }
}

/// The owner of a queue's ring.
pub(crate) trait RingMemory: fmt::Debug + Send + Sync {
    /// The ring's memory, if the queue has a ring of its own.
    fn buffer(&self) -> Option<&Buffer>;
}

/// The memory under a region.
#[derive(Debug)]
enum Backing {
    Buffer(Buffer),
    Ring(Box<dyn RingMemory>),
    Caller,
    File,
    Device(u64),
    /// The memory of another region.
    Shared(MemoryRegion),
    /// Of a session that was taken over: what of it is mapped here, and what it is in.
    Adopted(Option<Buffer>, Option<Object>),
}

/// Bytes of this process, which are used by their own addresses.
fn at(addr: u64, len: u64) -> Bytes {
    Bytes { place: Place::Process(addr), iova: addr, len }
}

/// Registered memory. It is deregistered when the last handle is dropped; from then on, the card
/// refuses its key.
///
/// ```
/// use remora::prelude::*;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let domain = Device::open()?.alloc_pd()?;
/// let memory = domain.alloc(4096, Access::all())?;
/// memory.write_at(8, b"hello")?;
/// assert_eq!(memory.slice(8..13).to_vec()?, b"hello");
/// let offered: Remote = memory.slice(8..).remote(); // what a peer needs to reach it
/// assert_eq!(offered.len, 4088);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct MemoryRegion {
    inner: Arc<MrInner>,
}

#[derive(Debug)]
struct MrInner {
    pd: ProtectionDomain,
    key: Key,
    bytes: Bytes,
    backing: Backing,
}

impl MemoryRegion {
    /// A region that another process has made in the same session.
    pub(crate) fn adopt(pd: ProtectionDomain, key: Key, adopted: AdoptedRegion) -> MemoryRegion {
        let AdoptedRegion { bytes, buffer, memory, .. } = adopted;
        let backing = Backing::Adopted(buffer, memory);
        MemoryRegion { inner: Arc::new(MrInner { pd, key, bytes, backing }) }
    }

    /// The protection domain that the region is registered in.
    pub fn domain(&self) -> &ProtectionDomain {
        &self.inner.pd
    }

    /// The key, for work requests (lkey) and peers (rkey).
    pub fn key(&self) -> Key {
        self.inner.key
    }

    /// The address of the first byte, for work requests and peers.
    pub fn addr(&self) -> u64 {
        self.inner.bytes.iova
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.inner.bytes.len
    }

    /// Is the region empty?
    pub fn is_empty(&self) -> bool {
        self.inner.bytes.len == 0
    }

    /// A scatter/gather entry for `len` bytes from `offset` on. The card checks the bounds when
    /// the entry is used.
    pub fn sge(&self, offset: u64, len: u32) -> Sge {
        Sge { addr: self.inner.bytes.iova.wrapping_add(offset), len, lkey: self.inner.key }
    }

    /// What a peer needs to reach the bytes from `offset` on.
    pub fn remote(&self, offset: u64) -> RemoteAddress {
        RemoteAddress { addr: self.inner.bytes.iova.wrapping_add(offset), rkey: self.inner.key }
    }

    /// Registers the same memory in another protection domain, at addresses from `iova` on. This
    /// registration stays until both regions are dropped.
    ///
    /// # Errors
    /// The card refuses: see [`RegMrError`]. A region in a file, or in card memory, is registered
    /// with its own device only.
    pub fn register_in(
        &self,
        domain: &ProtectionDomain,
        iova: u64,
        access: Access,
    ) -> Result<MemoryRegion, RegisterError> {
        let is_of_process = matches!(self.inner.bytes.place, Place::Process(_));
        if !is_of_process && !Arc::ptr_eq(self.inner.pd.live(), domain.live()) {
            return Err(RegisterError::OtherDevice);
        }
        let bytes = Bytes { iova, ..self.inner.bytes };
        domain.add(bytes, access, Backing::Shared(self.clone()))
    }

    /// The buffer under the region, if it has one of its own.
    #[inline]
    pub fn buffer(&self) -> Option<&Buffer> {
        match &self.inner.backing {
            Backing::Buffer(buffer) => Some(buffer),
            Backing::Adopted(buffer, _) => buffer.as_ref(),
            Backing::Shared(of) => of.buffer(),
            Backing::Ring(ring) => ring.buffer(),
            _ => None,
        }
    }

    /// Fills `dst` with the bytes of the region's buffer from `offset` on.
    ///
    /// # Errors
    /// Some of the bytes are not within the buffer, or the region has no buffer of its own.
    #[inline]
    pub fn read_at(&self, offset: usize, dst: &mut [u8]) -> Result<(), BufferError> {
        self.need_buffer(offset, dst.len())?.read_at(offset, dst)
    }

    /// Copies `src` to the bytes of the region's buffer from `offset` on.
    ///
    /// # Errors
    /// Some of the bytes are not within the buffer, or the region has no buffer of its own.
    #[inline]
    pub fn write_at(&self, offset: usize, src: &[u8]) -> Result<(), BufferError> {
        self.need_buffer(offset, src.len())?.write_at(offset, src)
    }

    #[inline]
    fn need_buffer(&self, offset: usize, len: usize) -> Result<&Buffer, BufferError> {
        self.buffer().ok_or(BufferError::OutOfRange { offset, len, buffer: 0 })
    }
}

impl Drop for MrInner {
    fn drop(&mut self) {
        let mut driver = self.pd.live().lock();
        if let Err(error) = driver.dereg_mr(self.key) {
            tracing::error!(%error, "a region's key was gone before the region");
        }
        match &self.backing {
            Backing::File => driver.remove_file(self.bytes.place),
            Backing::Device(addr) => drop(driver.free_dm(*addr)),
            Backing::Buffer(buffer) => {
                if let Driver::Attached(attached) = &mut *driver {
                    attached.end_loan(buffer.addr());
                }
            }
            Backing::Adopted(_, Some(memory)) => {
                if let Driver::Attached(attached) = &mut *driver {
                    attached.leave_memory(*memory);
                }
            }
            Backing::Ring(..)
            | Backing::Caller
            | Backing::Shared(_)
            | Backing::Adopted(_, None) => {}
        }
    }
}

/// Where datagrams go: an address, for [`UdDestination`](remora_nic::queue::UdDestination).
///
/// ```
/// use remora::prelude::*;
/// use remora::nic::queue::UdDestination;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let device = Device::open()?;
/// let domain = device.alloc_pd()?;
/// let handle = domain.create_ah(device.info().address)?;
/// let to = UdDestination { ah: handle.handle(), qpn: 0x12, qkey: 0x1111 };
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct AddressHandle {
    inner: Arc<AhInner>,
}

#[derive(Debug)]
struct AhInner {
    pd: ProtectionDomain,
    handle: u32,
}

impl AddressHandle {
    /// The card's number for the handle.
    pub fn handle(&self) -> u32 {
        self.inner.handle
    }
}

impl Drop for AhInner {
    fn drop(&mut self) {
        if let Err(error) = self.pd.live().lock().destroy_ah(self.handle) {
            tracing::error!(%error, "an address handle was gone before its owner");
        }
    }
}
