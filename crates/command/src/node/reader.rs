//! The client's side of documents: reads those that a node publishes.

use std::thread;
use std::time::Duration;

use serde::de::DeserializeOwned;
use thiserror::Error;

use super::address::RegionAddress;
use super::client::RemoteRegion;
use super::document::{self, DOCUMENT_MAX, DocumentError};
use super::transfer::{Transfer, TransferError};
use crate::foreign::parse_json;

/// How often a document is read again because it was being written.
const DOCUMENT_TRIES: usize = 100;

/// Why a document could not be read.
#[derive(Debug, Error)]
pub enum ReadDocumentError {
    /// The transfer failed.
    #[error(transparent)]
    Transfer(#[from] TransferError),
    /// It is not a document, or changes too fast.
    #[error("cannot read {region}: {source}")]
    Document {
        /// The document's region.
        region: RegionAddress,
        /// The reason.
        source: DocumentError,
    },
    /// It is longer than a node's documents are.
    #[error(
        "cannot read {region}: the node says that it has {bytes} bytes, and no document of a node \
         has more than {DOCUMENT_MAX}"
    )]
    TooLong {
        /// The document's region.
        region: RegionAddress,
        /// Its length.
        bytes: u64,
    },
    /// Its text does not have the expected form.
    #[error("cannot understand {region} (is the node of another version?): {reason}")]
    Json {
        /// The document's region.
        region: RegionAddress,
        /// The reason.
        reason: String,
    },
}

impl RemoteRegion {
    /// Reads a document of the node. Tries again while the document is being written. Texts in it
    /// are printable, whatever the node has written.
    ///
    /// # Errors
    /// See [`ReadDocumentError`].
    pub fn read_document<T: DeserializeOwned>(&self) -> Result<T, ReadDocumentError> {
        let region = || self.address().clone();
        if self.len() > DOCUMENT_MAX {
            return Err(ReadDocumentError::TooLong { region: region(), bytes: self.len() });
        }
        let mut transfer = Transfer::new(self)?;
        let mut torn = DocumentError::Torn;
        for _ in 0..DOCUMENT_TRIES {
            let mut bytes = Vec::new();
            transfer.read(0..self.len(), &mut |part| {
                bytes.extend_from_slice(part);
                Ok(())
            })?;
            match document::parse(&bytes) {
                Ok(document) => {
                    return parse_json(document.text.as_bytes())
                        .map_err(|reason| ReadDocumentError::Json { region: region(), reason });
                }
                // A document that was never written will be written soon, too.
                Err(error) => torn = error,
            }
            thread::sleep(Duration::from_millis(5));
        }
        Err(ReadDocumentError::Document { region: region(), source: torn })
    }
}
