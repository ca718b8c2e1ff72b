//! Sites: the fronts that one listener serves. The host of a request decides which one it is for, and the
//! path where `server.path_proxy` says so.

use axum::Router;
use axum::http::Request;
use axum::response::{IntoResponse, Response};

use super::error::{ApiError, Failure};
use super::preview::target;

/// Front that a request is for; an extension of every request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Site {
    /// The API of the service.
    Api,
    /// A program in a sandbox, through the preview of a port.
    Preview,
}

/// Function that writes an error into its answer, which has the status already.
pub type Render = fn(&ApiError, &mut Response);

/// Renderers of the errors of each site.
#[derive(Debug, Clone, Copy)]
pub struct Renderers {
    pub(super) api: Render,
    pub(super) preview: Render,
}

impl Renderers {
    /// Renders the error of an answer to a request for `site`; leaves other answers as they are.
    pub(super) fn render(&self, site: Site, response: &mut Response) {
        let Some(Failure(error)) = response.extensions().get().cloned() else { return };
        match site {
            Site::Api => (self.api)(&error, response),
            Site::Preview => (self.preview)(&error, response),
        }
    }
}

/// Routers of the sites.
#[derive(Debug, Clone)]
pub struct Sites {
    pub(super) api: Router,
    pub(super) previews: Router,
    pub(super) renderers: Renderers,
    /// Domain of the previews, in lower case.
    pub(super) domain: String,
    /// True if a path of the API's own host may stand for a port.
    pub(super) path_proxy: bool,
}

impl Sites {
    /// Returns the site of a request with its router. The request gets the site as an extension, and one
    /// to a preview its target.
    pub(super) fn select<B>(&self, request: &mut Request<B>) -> (Router, Site) {
        let mut asked = target::of(request, &self.domain);
        if self.path_proxy {
            asked = asked.or_else(|| target::in_path(request.uri().path()));
        }
        let (router, site) = match asked {
            Some(asked) => {
                request.extensions_mut().insert(asked);
                (&self.previews, Site::Preview)
            }
            None => (&self.api, Site::Api),
        };
        request.extensions_mut().insert(site);
        (router.clone(), site)
    }

    /// Returns the answer to a request that is refused before it has a site.
    pub(super) fn refuse(&self, error: ApiError) -> Response {
        let mut response = error.into_response();
        self.renderers.render(Site::Api, &mut response);
        response
    }
}
