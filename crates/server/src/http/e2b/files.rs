//! `/files` of the data plane: files read and written as a user, by the token of their sandbox or by a signed link.

mod form;
mod metadata;

use std::future::ready;

use axum::Json;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::{StreamExt, TryStreamExt, stream};
use providers::{ByteStream, Chain, FileContent, NewXattrs, STREAM_BYTES_MAX, Xattrs};
use serde::Serialize;

use self::form::Form;
pub use self::metadata::PREFIX;
use super::in_box::InBox;
use super::query::Query;
use super::user::{Actor, actor};
use crate::control::Error;
use crate::http::body::Upload;
use crate::http::error::{Refusal, Result, malformed};
use crate::http::range;
use crate::http::request_memory::{Meter, WAIT_MAX};
use crate::http::state::Api;
use crate::http::stream::codec::{self, Bound, CODEC_BYTES, Encoding};
use crate::http::stream::flow_control::{OUTFLOW_BYTES, flowing};

/// Parts of one upload.
const PARTS_MAX: usize = 1000;
/// A file that was written.
#[derive(Debug, Serialize)]
struct Written {
    path: String,
    name: String,
    #[serde(rename = "type")]
    kind: &'static str,
    #[serde(skip_serializing_if = "Xattrs::is_empty")]
    metadata: Xattrs,
}

impl Written {
    fn at(path: String, metadata: Xattrs) -> Self {
        let name = path.rsplit('/').next().unwrap_or_default().to_owned();
        Self { path, name, kind: "file", metadata }
    }
}

/// Returns the user of a request, and the path that it means.
async fn addressed(api: &Api, id: &str, query: &Query) -> Result<Actor> {
    actor(&api.control, id, query.get("username").filter(|name| !name.is_empty())).await
}

/// Reads a file.
pub async fn read(
    State(api): State<Api>,
    InBox(id): InBox,
    query: Query,
    meter: Meter,
    headers: HeaderMap,
) -> Result<Response> {
    let actor = addressed(&api, &id, &query).await?;
    let path = actor.absolute(query.get("path").unwrap_or_default())?;
    let user = actor.user.as_deref();
    let encoding = wanted_encoding(&headers);
    let kept = STREAM_BYTES_MAX + if encoding == Encoding::Identity { 0 } else { CODEC_BYTES };
    let held = meter.account().reserve_within(kept + OUTFLOW_BYTES, WAIT_MAX).await?;
    let (mut file, status, length, part) = match range::wanted(&headers).filter(|_| encoding == Encoding::Identity) {
        None => {
            let file = api.control.read_file_as(&id, user, &path, 0, None).await?;
            let size = Some(file.info.size);
            (file, StatusCode::OK, size, None)
        }
        Some(wanted) => {
            let size = api.control.read_file_as(&id, user, &path, 0, Some(0)).await?.info.size;
            let (first, length) = wanted.within(size).ok_or(Refusal::Range(size))?;
            let file = api.control.read_file_as(&id, user, &path, first, Some(length)).await?;
            let part = format!("bytes {first}-{}/{size}", first + length - 1);
            (file, StatusCode::PARTIAL_CONTENT, Some(length), Some(part))
        }
    };
    let length = true_length(&mut file, length).await?.filter(|_| encoding == Encoding::Identity);
    let bytes = codec::encoded(file.bytes, encoding);
    let bytes =
        bytes.map(|piece| piece.inspect_err(|error| tracing::warn!(error = %Chain(error), "download interrupted")));
    let mut response = Response::new(Body::from_stream(flowing(bytes.boxed(), held, kept)));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    // Content written by a guest must not run as a page of this server.
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox"));
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    headers.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
    if let Some(name) = encoding.name() {
        headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static(name));
    }
    if let Some(length) = length {
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    }
    if let Some(part) = part.and_then(|part| HeaderValue::try_from(part).ok()) {
        headers.insert(header::CONTENT_RANGE, part);
    }
    Ok(response)
}

/// Returns the length to announce; `None` if it is not known. Files of the kernel report a size of 0 and are not
/// empty, while clients know an empty file by that length.
async fn true_length(file: &mut FileContent, length: Option<u64>) -> Result<Option<u64>> {
    if length != Some(0) {
        return Ok(length);
    }
    let bytes = std::mem::replace(&mut file.bytes, stream::empty().boxed());
    let (first, rest) = bytes.into_future().await;
    let Some(first) = first else { return Ok(Some(0)) };
    file.bytes = stream::once(async move { first }).chain(rest).boxed();
    Ok(None)
}

/// Returns the encoding of an answer: gzip only if the client lists nothing else, because a list is the default of its
/// HTTP library.
fn wanted_encoding(headers: &HeaderMap) -> Encoding {
    let mut values = headers.get_all(header::ACCEPT_ENCODING).iter();
    match (values.next().and_then(|value| value.to_str().ok()), values.next()) {
        (Some(only), None) if only.trim().eq_ignore_ascii_case("gzip") => Encoding::Gzip,
        _ => Encoding::Identity,
    }
}

/// Writes files: the parts of a form, or the body.
pub async fn write(
    State(api): State<Api>,
    InBox(id): InBox,
    query: Query,
    meter: Meter,
    request: Request,
) -> Result<Response> {
    let headers = request.headers();
    let metadata = metadata::sent(headers)?;
    let encoding = Encoding::sent(headers)?;
    let content_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let boundary = multer::parse_boundary(content_type).ok();
    let is_bytes = content_type.split(';').next().is_some_and(|kind| kind.trim() == "application/octet-stream");
    let actor = addressed(&api, &id, &query).await?;
    if encoding != Encoding::Identity {
        meter.hold(CODEC_BYTES).await?;
    }
    let upload = Upload::begin(request.into_body(), api.settings.file_bytes_max, &meter).await?;
    upload.check_announced().await?;
    let bound = Bound::new(api.settings.file_bytes_max);
    let bytes = codec::decoded(upload.bytes(providers::Error::Invalid), encoding, &bound);
    let path = query.get("path").filter(|path| !path.is_empty());
    let into = Into { api: &api, id: &id, actor: &actor, path, metadata };
    let written = match boundary {
        Some(boundary) => into.parts(bytes, &boundary).await,
        None if is_bytes => into.whole(bytes).await,
        None => {
            Err(malformed("send files as `multipart/form-data`, or the content of one as `application/octet-stream`"))
        }
    };
    match written {
        Ok(written) => Ok(Json(written).into_response()),
        Err(_) if bound.is_exceeded() => {
            let text = "the unpacked content is larger than `limits.max_file_bytes`; send it in parts";
            Err(Error::TooLarge(text.to_owned()).into())
        }
        Err(error) => Err(upload.refuse(Some(error)).await),
    }
}

/// Place that content is written into.
struct Into<'a> {
    api: &'a Api,
    id: &'a str,
    actor: &'a Actor,
    /// Path of the query, which counts before the names of parts.
    path: Option<&'a str>,
    /// Metadata that each file gets.
    metadata: Xattrs,
}

impl Into<'_> {
    async fn whole(&self, bytes: ByteStream) -> Result<Vec<Written>> {
        let path = self.path.ok_or_else(|| malformed("`path` is missing in the query"))?;
        Ok(vec![self.one(path, bytes).await?])
    }

    async fn one(&self, path: &str, bytes: ByteStream) -> Result<Written> {
        let path = self.actor.absolute(path)?;
        let xattrs = NewXattrs { prefix: PREFIX.to_owned(), values: self.metadata.clone() };
        self.api.control.overwrite_file(self.id, self.actor.user.as_deref(), &path, xattrs, bytes).await?;
        Ok(Written::at(path, self.metadata.clone()))
    }

    /// Writes each part by the name `file`, one after the other.
    async fn parts(&self, bytes: ByteStream, boundary: &str) -> Result<Vec<Written>> {
        let mut form = Form::of(bytes, boundary);
        let (mut written, mut parts) = (Vec::new(), 0);
        while let Some(part) = form.next().await? {
            parts += 1;
            if parts > PARTS_MAX {
                return Err(malformed(format!("a form may have at most {PARTS_MAX} parts; send the rest in another")));
            }
            if part.name() != Some("file") {
                form.content(part)
                    .try_for_each(|_| ready(Ok(())))
                    .await
                    .map_err(|error| malformed(error.to_string()))?;
                continue;
            }
            let named = part.file_name().filter(|name| !name.is_empty()).map(str::to_owned);
            let path =
                self.path.map(str::to_owned).or(named).ok_or_else(|| {
                    malformed("name each file by `path` in the query, or by the `filename` of its part")
                })?;
            written.push(self.one(&path, form.content(part)).await?);
        }
        Ok(written)
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn only_a_client_that_accepts_nothing_else_gets_gzip() {
        for (accepted, expected) in [
            ("gzip", Encoding::Gzip),
            (" GZIP ", Encoding::Gzip),
            ("gzip, deflate", Encoding::Identity),
            ("identity", Encoding::Identity),
            ("*", Encoding::Identity),
            ("zstd,gzip,br", Encoding::Identity),
        ] {
            let headers = HeaderMap::from_iter([(header::ACCEPT_ENCODING, accepted.parse().unwrap())]);
            assert_eq!(wanted_encoding(&headers), expected, "{accepted}");
        }
        assert_eq!(wanted_encoding(&HeaderMap::new()), Encoding::Identity);
    }

    #[test]
    fn a_written_file_is_told_by_its_path_and_its_name() {
        let written = |metadata| serde_json::to_value(Written::at("/home/user/a b.txt".to_owned(), metadata)).unwrap();
        let mut expected = serde_json::json!({"path": "/home/user/a b.txt", "name": "a b.txt", "type": "file"});
        assert_eq!(written(Xattrs::new()), expected);
        expected["metadata"] = serde_json::json!({"k": "v"});
        assert_eq!(written(Xattrs::from([("k".to_owned(), "v".to_owned())])), expected);
    }
}
