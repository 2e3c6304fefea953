//! The client's side of documents: reads those that a node publishes.

use std::thread;
use std::time::Duration;

use serde::de::DeserializeOwned;
use thiserror::Error;

use super::address::RegionAddress;
use super::client::RemoteRegion;
use super::document::{self, DocumentError};
use super::transfer::{Transfer, TransferError};

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
    /// Its text does not have the expected form.
    #[error("cannot understand {region} (is the node of another version?): {source}")]
    Json {
        /// The document's region.
        region: RegionAddress,
        /// The reason.
        source: serde_json::Error,
    },
}

impl RemoteRegion {
    /// Reads a document of the node. Tries again while the document is being written.
    ///
    /// # Errors
    /// See [`ReadDocumentError`].
    pub fn read_document<T: DeserializeOwned>(&self) -> Result<T, ReadDocumentError> {
        let region = || self.address().clone();
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
                    return serde_json::from_str(document.text)
                        .map_err(|source| ReadDocumentError::Json { region: region(), source });
                }
                // A document that was never written will be written soon, too.
                Err(error) => torn = error,
            }
            thread::sleep(Duration::from_millis(5));
        }
        Err(ReadDocumentError::Document { region: region(), source: torn })
    }
}
